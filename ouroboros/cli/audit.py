"""Check that a run is lossless: `ouroboros audit`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from ouroboros.audit.files import audit_files
from ouroboros.audit.report import OPEN, audit_markdown, tally, verdict_table
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.report import make_report
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.run.audit import audit_run, load_audit
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.run.run import rebuild
from ouroboros.cli.common import check_syntax, composed, parsed
from ouroboros.models.vocab import eos_ids


def audit(words: Sequence[str], overrides: Sequence[str]) -> tuple[int, dict]:
    """Audit a run (`words`: its folder), or files of completions; write audit.jsonl and
    audit.md; print the verdicts. `overrides` are those of the run's config, or of the models for
    files. Return the exit code (1: a BUG, 2: a completion that could not be judged) and the
    document."""
    check_syntax("audit", overrides)
    first, *others = files = list(map(Path, words))
    if first.is_file():
        config = composed(["decoder=[greedy]", *overrides])
        target = load_pair(config.model, with_draft=False).target
        with tqdm(desc="audit", unit="prompt") as bar:
            rows = audit_files(target, files, eos=eos_ids(target), on_row=bar.update)
        names, greedy = list(rows[0].findings), True
        folder, reference = ResultsFolder(files[-1].with_suffix(".audit")), names[0]
        folder.path.mkdir(exist_ok=True)
        lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        folder.write_text("audit.jsonl", lines)
        title = f"{', '.join(names)} by {config.model.target} in {str(target.dtype)[6:]}"
    else:
        if others:
            raise ValueError(f"{others[0]}: audit one results folder at a time")
        folder, reference = ResultsFolder(first), PLAIN
        bench = rebuild(folder, parsed(overrides))
        if PLAIN not in bench.decoders:
            reason = f"the run has no decoder {PLAIN!r} to compare with"
            raise ValueError(f"{reason}: add it to decoder=[]")
        names, greedy = list(bench.decoders), not bench.sampling.temperature
        with folder.locked():
            record = folder.load_run()
            if failure := bench.score(folder, record):
                print(f"some completions have no score: {failure}", file=sys.stderr)
            folder.save_run(record, status=record["status"])
            audit_run(bench, folder, controls=True, progress=True)
        title, rows = make_report(folder).facts.title, load_audit(folder)
    verdicts = verdict_table(rows, names, reference=reference, greedy=greedy)
    folder.write_text("audit.md", audit_markdown(title, rows, verdicts))
    counts = {name: tally(rows, name) for name in names}
    table = verdicts.filter(["decoder", "compared with", "verdict", "greedy-equivalent"])
    print(title, as_text(table, "simple"), sep="\n\n", end="\n\n")
    print(f"audit: {folder.path / 'audit.md'}", file=sys.stderr)
    bugs = sum(found.get("BUG", 0) for found in counts.values())
    unjudged = sum(found.get(word, 0) for found in counts.values() for word in OPEN)
    document = {"folder": str(folder.path), "verdicts": counts, "bugs": bugs}
    return 1 if bugs else 2 if unjudged else 0, document
