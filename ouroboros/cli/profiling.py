"""`ouroboros profile`: say where the time goes on this machine.

The options are those of `ouroboros bench` and profile.* (conf/profiling.yaml).
"""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from ouroboros.bench.report.profile import ProfileOptions
from ouroboros.bench.report.profile import profile as measure_profile
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.run.run import short_path
from ouroboros.cli.bench import run_config
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.output import print_document


def profile(cfg: DictConfig, as_json: bool = False) -> int:
    """Measure a profile and print its main tables; return the exit code, as ouroboros bench."""
    composed = chosen(plain(cfg))
    options = ProfileOptions(**composed.pop("profile"))
    found = measure_profile(
        run_config(composed),
        options,
        say=lambda line: print(line, file=sys.stderr),
        progress=True,
    )
    shown = found.tables()
    shown["steps"] = shown["steps"].iloc[:, :7]  # profile.md has the rest
    tables = [as_text(table, "simple") for table in shown.values()]
    print(found.facts.title, found.facts.footnote, *tables, sep="\n\n")
    for line in found.failures:
        print(line, file=sys.stderr)
    folder = short_path(found.folder.path)
    print_document({"results": folder, **found.to_dict(brief=True)}, as_json)
    if found.facts.status != "finished":
        return 130
    return 0 if found.facts.prompts else 1
