"""Is a run lossless? Judge every completion of a results folder: `ouroboros audit`."""

from __future__ import annotations

import argparse
import sys

import pandas as pd
from tqdm import tqdm

from ouroboros.audit.report import OPEN, audit_markdown, tally, verdict
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.report.write import make_report
from ouroboros.bench.run.audit import audit_run, load_audit
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.run import rebuild, short_path
from ouroboros.cli.configs import overrides_of
from ouroboros.cli.output import print_document


def audit(options: argparse.Namespace) -> int:
    """Audit the folder, write audit.jsonl and audit.md, print verdicts; return the exit code."""
    folder = ResultsFolder(options.folder)
    bench = rebuild(folder, overrides_of(options.overrides))
    if PLAIN not in bench.decoders:
        raise ValueError(f"the run has no decoder {PLAIN!r} to compare with: add it to decoder=[]")
    total = len(bench.examples) * bench.repeats
    with folder.locked(), tqdm(total=total, desc="audit", unit="prompt") as bar:
        audit_run(bench, folder, controls=True, on_row=bar.update)
    summary, rows = make_report(folder), load_audit(folder)
    title = summary.facts.title
    folder.write_text("audit.md", audit_markdown(title, rows, list(bench.decoders)))
    counts = {name: tally(rows, name) for name in bench.decoders}
    verdicts = [verdict(found) for found in counts.values()]
    table = pd.DataFrame({"decoder": list(counts), "verdict": verdicts})
    print(title, as_text(table, "simple"), sep="\n\n", end="\n\n")
    print(f"audit: {short_path(folder.path / 'audit.md')}", file=sys.stderr)
    bugs = sum(found.get("BUG", 0) for found in counts.values())
    unjudged = sum(found.get(word, 0) for found in counts.values() for word in OPEN)
    document = {"folder": str(folder.path), "verdicts": counts, "bugs": bugs}
    print_document(document, options.json)
    return 1 if bugs else 2 if unjudged else 0
