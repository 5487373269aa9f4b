"""What every command prints in the same way."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping


def print_document(document: Mapping, as_json: bool = False) -> None:
    """Print a document as one line of JSON, the last on stdout.

    It is printed with --json (`as_json`) or where stdout is not a terminal: a person reads tables,
    a program the last line.
    """
    if as_json or not sys.stdout.isatty():
        print(json.dumps(document, ensure_ascii=False), flush=True)
