"""The one door to all commands: `ouroboros COMMAND ...`."""

from __future__ import annotations

import importlib
import sys

MODULES = {
    **{
        name: name for name in ("bench", "report", "audit", "replay", "advise", "tune", "agreement")
    },
    **{"profile": "profiling", "campaign": "campaign", "standin": "standin"},
}


def main() -> int | None:
    """Call the command that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in MODULES:
        print(f"usage: ouroboros {{{','.join(MODULES)}}} ...", file=sys.stderr)
        return 2
    name = sys.argv.pop(1)
    return importlib.import_module(f"ouroboros.commands.{MODULES[name]}").main()
