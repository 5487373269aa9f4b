"""Is a run lossless? Judge every completion: identical, numeric tie or BUG.

    ouroboros bench experiment=audit results_dir=results/local/audit
    ouroboros audit results/local/audit
    ouroboros audit results/local/x task.path=mine.jsonl     its file lies here

The models are loaded again as the run's config says. Plain decoding's own text
(greedy's) is held against transformers' own forward, in float64 and with calls
of 1, 8 and all tokens; every other decoder's against plain decoding's. Writes
audit.jsonl and audit.md; the last line on stdout is one JSON document; the
exit code is 1 where there is a BUG, 2 where something could not be judged.
"""

from __future__ import annotations

import argparse
import json
import sys

from omegaconf import OmegaConf
from tabulate import tabulate
from tqdm import tqdm

from ouroboros.bench.report.folder_report import make_report
from ouroboros.bench.run.file_hash import check_places
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.record import run_facts
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.bench.verdict.audit_report import PLAIN, audit_markdown, load_audit, tally, verdict
from ouroboros.bench.verdict.run_audit import audit_run
from ouroboros.commands.build import build_bench, build_pair, build_task
from ouroboros.commands.refusals import CALLERS, one_line


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="a results folder")
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="of the run's config")
    arguments = parser.parse_args()
    try:
        return audit(ResultsFolder(arguments.folder), arguments.overrides)
    except CALLERS as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def audit(folder: ResultsFolder, overrides: list[str]) -> int:
    """Judge the folder's samples, write the verdicts, print them; return the exit code."""
    job = rebuild(folder, overrides)
    if PLAIN not in job.decoders:
        raise ValueError(f"the run has no decoder {PLAIN!r} to compare with: add it to decoder=[]")
    with tqdm(total=len(job.examples) * job.repeats, desc="audit", unit="prompt") as bar:
        audit_run(job, folder, controls=True, on_row=bar.update)
    summary, rows = make_report(folder), load_audit(folder)
    folder.write_text("audit.md", audit_markdown(summary["title"], rows, list(job.decoders)))
    counts = {name: tally(rows, name) for name in job.decoders}
    table = [(name, verdict(found)) for name, found in counts.items()]
    print(summary["title"], tabulate(table, ("decoder", "verdict")), sep="\n\n", end="\n\n")
    bugs = sum(found.get("BUG", 0) for found in counts.values())
    unknown = sum(found.get("not judged", 0) for found in counts.values())
    print(json.dumps({"folder": str(folder.path), "verdicts": counts, "bugs": bugs}))
    return 1 if bugs else 2 if unknown else 0


def rebuild(folder: ResultsFolder, overrides: list[str]) -> Bench:
    """Return the job of a folder's run, with some values of its config replaced, such as paths.

    Raises `ValueError` where it would not be the same job.
    """
    run = folder.load_run()
    merged = OmegaConf.merge(OmegaConf.create(run["config"]), OmegaConf.from_dotlist(overrides))
    config = OmegaConf.to_container(merged)
    assert isinstance(config, dict)
    config["part"] = run.get("part")
    check_places(config, run.get("contents", {}))
    task, examples = build_task(config["task"])
    recorded = folder.load_costs()
    job = build_bench(config, task, examples, build_pair(config), recorded=recorded)
    facts = run_facts(config, job)
    for what, old, new in (
        ("prompts", run["task"].get("fingerprint"), facts["task"]["fingerprint"]),
        ("dtype", run["model"]["dtype"], facts["model"]["dtype"]),
        ("sampling", run["sampling"], facts["sampling"]),
        ("max_new", run["max_new"], facts["max_new"]),
    ):
        if old is not None and old != new:
            raise ValueError(f"the run had other {what} ({old}, now {new}): replace paths only")
    return job
