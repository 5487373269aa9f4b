"""The one door to all commands: `ouroboros COMMAND ...`, or `python -m ouroboros COMMAND ...`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import ouroboros

COMMANDS = {
    "generate": ("generate", "decode one prompt, coloured by who proposed each token"),
    "bench": ("bench", "run decoders over a task on one pair of models, and compare them"),
    "report": ("report", "make tables, plots and an HTML page from results folders"),
    "audit": ("audit", "is a run lossless? judge every completion of a results folder"),
    "advise": ("advise", "predict each decoder's speed here, its best settings, what fits"),
    "profile": ("profiling", "say where the time goes: what calls cost, what steps consist of"),
    "replay": ("replay", "run drafters against a recording, with no target"),
    "agreement": ("agreement", "say what a draft of each agreement is worth on recorded text"),
    "tune": ("tune", "search every decoder's settings with one budget"),
    "campaign": ("campaign", "measure all that is to be measured on a new GPU, in stages"),
    "standin": ("standin", "save a small trained model inside a large model's shape"),
}
"""What is typed, its module here, and what it does."""


def main(argv: Sequence[str] | None = None) -> int | None:
    """Call the command that the first argument names; return its exit code (None is 0)."""
    parser = argparse.ArgumentParser(
        prog="ouroboros",
        description=ouroboros.__doc__,
        epilog="'ouroboros COMMAND --help' says what a command takes.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {ouroboros.__version__}")
    doors = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, summary) in COMMANDS.items():
        doors.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(argv)
    sys.argv = [f"ouroboros {chosen.command}", *rest]
    try:
        return importlib.import_module(f"ouroboros.commands.{COMMANDS[chosen.command][0]}").main()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "ouroboros":
            raise
        print(f"error: {missing(error.name)}", file=sys.stderr)
        return 2


def missing(module: str) -> str:
    """Return one line about a package that is not installed, with what brings it."""
    package = module.split(".")[0]
    return f"this needs {package}, which is not installed: pip install 'ouroboros-decoding[bench]'"
