"""Make summary.json, summary.md and speedup.png anew from results folders."""

from __future__ import annotations

import argparse
import json
import sys

from ouroboros.bench.report import headline, make_report, tables
from ouroboros.bench.store import ResultsFolder


def main() -> int:
    """Report on each folder; the last line on stdout is one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a results folder")
    document = {}
    for folder in parser.parse_args().folders:
        try:
            summary = make_report(ResultsFolder(folder))
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(summary["title"], *tables(summary, "simple"), sep="\n\n", end="\n\n")
        document[folder] = headline(summary)
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
