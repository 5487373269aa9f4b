"""Is a run lossless? Judge every completion: `ouroboros audit`.

What can be typed, and how it is judged, stands in `ouroboros.cli.arguments`.
"""

from __future__ import annotations

import argparse

from tabulate import tabulate
from tqdm import tqdm

from ouroboros.audit.report import OPEN, audit_markdown, tally, verdict
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.write import make_report
from ouroboros.bench.run.audit import audit_run, load_audit
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.run import rebuild
from ouroboros.cli.configs import overrides_of
from ouroboros.cli.output import print_document


def audit(options: argparse.Namespace) -> int:
    """Judge the folder's samples, write the verdicts, print them; return the exit code."""
    folder = ResultsFolder(options.folder)
    job = rebuild(folder, overrides_of(options.overrides))
    if PLAIN not in job.decoders:
        raise ValueError(f"the run has no decoder {PLAIN!r} to compare with: add it to decoder=[]")
    with tqdm(total=len(job.examples) * job.repeats, desc="audit", unit="prompt") as bar:
        audit_run(job, folder, controls=True, on_row=bar.update)
    summary, rows = make_report(folder), load_audit(folder)
    folder.write_text("audit.md", audit_markdown(summary.facts.title, rows, list(job.decoders)))
    counts = {name: tally(rows, name) for name in job.decoders}
    table = [(name, verdict(found)) for name, found in counts.items()]
    print(summary.facts.title, tabulate(table, ("decoder", "verdict")), sep="\n\n", end="\n\n")
    bugs = sum(found.get("BUG", 0) for found in counts.values())
    unknown = sum(found.get(word, 0) for found in counts.values() for word in OPEN)
    document = {"folder": str(folder.path), "verdicts": counts, "bugs": bugs}
    print_document(document, options.json)
    return 1 if bugs else 2 if unknown else 0
