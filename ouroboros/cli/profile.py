"""Measure where the time goes on this machine: `ouroboros profile`.

The options are those of `ouroboros bench`, plus profile.* (conf/profile.yaml).
"""

from __future__ import annotations

import sys

from ouroboros.bench.report.profile import ProfileOptions
from ouroboros.bench.report.profile import profile as measured
from ouroboros.bench.report.tables import as_text
from ouroboros.cli import options as cli
from ouroboros.cli.bench import run_config


def profile(options: cli.ProfileOptions) -> tuple[int, dict]:
    """Measure a profile and print its main tables (profile.md has the rest); return the exit code
    and the JSON document."""
    (config, _), what = run_config(options), ProfileOptions(**options.profile)
    found = measured(config, what, say=lambda line: print(line, file=sys.stderr), progress=True)
    tables = found.tables()
    tables["steps"] = tables["steps"].iloc[:, :7]
    texts = [as_text(table, "simple") for table in tables.values()]
    print(found.facts.title, found.facts.footnote, *texts, sep="\n\n")
    for line in found.failures:
        print(line, file=sys.stderr)
    document = {"results": str(found.folder.path), **found.to_dict()}
    if found.facts.status != "finished":
        return 130, document
    return (0 if found.facts.prompts else 1), document
