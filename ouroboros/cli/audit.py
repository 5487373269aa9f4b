"""Is a run lossless? Judge every completion of a results folder: `ouroboros audit`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from ouroboros.audit.files import audit_files
from ouroboros.audit.report import OPEN, Row, audit_markdown, greedy_equivalent, tally, verdict
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.report import make_report
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.run.audit import audit_run, load_audit
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.loop import eos_ids
from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.run.run import rebuild, short_path
from ouroboros.cli.configs import composed, overrides_of
from ouroboros.cli.output import print_document


def audit(options: argparse.Namespace) -> int:
    """Audit the folder, or files of completions; write audit.jsonl and audit.md, print verdicts;
    return the exit code."""
    if Path(options.folder).is_file():
        return _audit_files(options)
    folder = ResultsFolder(options.folder)
    bench = rebuild(folder, overrides_of(options.overrides))
    if PLAIN not in bench.decoders:
        raise ValueError(f"the run has no decoder {PLAIN!r} to compare with: add it to decoder=[]")
    total = len(bench.examples) * bench.repeats
    with folder.locked(), tqdm(total=total, desc="audit", unit="prompt") as bar:
        audit_run(bench, folder, controls=True, on_row=bar.update)
    summary, rows = make_report(folder), load_audit(folder)
    title, greedy = summary.facts.title, not bench.sampling.temperature
    text = audit_markdown(title, rows, list(bench.decoders), greedy=greedy)
    folder.write_text("audit.md", text)
    return _show(title, rows, list(bench.decoders), folder.path, greedy, options.json)


def _audit_files(options: argparse.Namespace) -> int:
    """Judge files of greedy completions of any engine by the model that the overrides name."""
    files = [Path(options.folder), *(Path(p) for p in options.overrides if "=" not in p)]
    if lost := [str(path) for path in files if not path.is_file()]:
        raise ValueError(f"no file {', '.join(lost)}: give files of completions, then NAME=VALUE")
    overrides = [option for option in options.overrides if "=" in option]
    config = RunConfig.from_mapping(composed(["decoder=[greedy]", *overrides]))
    target = load_pair(config.model, with_draft=False).target
    with tqdm(desc="audit", unit="prompt") as bar:
        rows = audit_files(target, files, eos=eos_ids(target), on_row=bar.update)
    names, out = list(rows[0].findings), files[-1].with_suffix(".audit")
    out.mkdir(exist_ok=True)
    lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    (out / "audit.jsonl").write_text(lines, encoding="utf-8")
    title = f"{', '.join(names)} by {config.model.target} in {str(target.dtype)[6:]}"
    text = audit_markdown(title, rows, names, reference=names[0], greedy=True)
    (out / "audit.md").write_text(text, encoding="utf-8")
    return _show(title, rows, names, out, True, options.json)


def _show(
    title: str, rows: Sequence[Row], names: Sequence[str], out: Path, greedy: bool, as_json: bool
) -> int:
    counts = {name: tally(rows, name) for name in names}
    table = pd.DataFrame({"decoder": names, "verdict": map(verdict, counts.values())})
    if greedy:
        table["greedy-equivalent"] = list(map(greedy_equivalent, counts.values()))
    print(title, as_text(table, "simple"), sep="\n\n", end="\n\n")
    print(f"audit: {short_path(out / 'audit.md')}", file=sys.stderr)
    bugs = sum(found.get("BUG", 0) for found in counts.values())
    unjudged = sum(found.get(word, 0) for found in counts.values() for word in OPEN)
    print_document({"folder": str(out), "verdicts": counts, "bugs": bugs}, as_json)
    return 1 if bugs else 2 if unjudged else 0
