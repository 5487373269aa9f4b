"""What every command prints in the same way."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def print_document(document: Mapping, as_json: bool = False) -> None:
    """Print a document as one line of JSON, the last on stdout.

    It is printed with --json (`as_json`) or where stdout is not a terminal: a person reads tables,
    a program the last line.
    """
    if as_json or not sys.stdout.isatty():
        print(json.dumps(document, ensure_ascii=False), flush=True)


def print_table(table: pd.DataFrame, *, digits: int = 2) -> None:
    """Print a table, - in place of NaN."""
    form = f"{{:.{digits}f}}".format
    print(known(table, "-").to_string(index=False, float_format=form))


def known(table: pd.DataFrame, missing: Any = None) -> pd.DataFrame:
    """Return a table with `missing` in place of NaN; JSON has None."""
    return table.astype(object).where(table.notna(), missing)
