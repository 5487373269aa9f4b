"""The command line: `ouroboros COMMAND ...`, or `python -m ouroboros COMMAND ...`.

A command's own module, and with it torch, is imported when the command runs, never for its help:
that is in conf/hydra/help for commands with Hydra's syntax, in `ouroboros.cli.arguments` for the
others. A function that runs a command returns its exit code (None is 0).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

import ouroboros

COMMANDS = {
    "generate": "decode one prompt, coloured by who proposed each token",
    "bench": "run decoders over a task on one pair of models, and compare them",
    "report": "make tables, plots and an HTML page from results folders",
    "audit": "is a run lossless? judge every completion of a results folder",
    "advise": "predict each decoder's speed here, its best settings, what fits",
    "profile": "say where the time goes: what calls cost, what steps consist of",
    "replay": "run drafters against a recording, with no target",
    "tune": "search every decoder's settings with one budget",
}
HYDRA = {
    "bench": ("bench.bench", "config"),
    "advise": ("advise.advise_all", "advise"),
    "profile": ("profiling.profile", "profiling"),
    "replay": ("replay.replay_all", "replay"),
}
"""Commands with Hydra's syntax: their function of a config and of --json, and their config."""


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that the first argument names; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="ouroboros",
        description=str(ouroboros.__doc__).splitlines()[0],
        epilog="'ouroboros COMMAND --help' describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {ouroboros.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(argv)
    try:
        return run(chosen.command, rest)
    except KeyboardInterrupt:
        kept = "what was written is kept; rerun with the same results_dir to resume"
        print(f"interrupted: {kept}", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        package = (error.name or "ouroboros").split(".")[0]
        if package == "ouroboros":
            raise
        remedy = "pip install 'ouroboros-decoding[bench]'"
        print(f"error: this needs {package}, which is not installed: {remedy}", file=sys.stderr)
        return 2
    except ImportError as error:  # an installed package refuses, as numba beside a newer NumPy
        if (error.name or "").startswith("ouroboros"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(command: str, argv: Sequence[str]) -> int | None:
    """Parse the arguments of a command and run it."""
    if command not in HYDRA:
        from ouroboros.cli import arguments

        sys.argv = [f"ouroboros {command}", *argv]
        options = getattr(arguments, command)().parse_intermixed_args()
        from ouroboros.cli.errors import report_cli_errors

        return report_cli_errors(lambda: function(f"{command}.{command}")(options))
    import hydra

    from ouroboros.cli import CONF
    from ouroboros.cli.errors import report_cli_errors

    job, config = HYDRA[command]
    sys.argv = [f"ouroboros {command}", *(one for one in argv if one != "--json")]
    enter = hydra.main(version_base="1.3", config_path=CONF, config_name=config)
    task = partial(run_job, job, as_json="--json" in argv, debug="HYDRA_FULL_ERROR" in os.environ)
    return report_cli_errors(enter(task))


def run_job(job: str, cfg, *, as_json: bool, debug: bool) -> None:
    """Run one job of a Hydra command, and exit with its code.

    In a sweep the other jobs go on after failed samples, and after an error, which is reported when
    all have ended. `debug` shows whole tracebacks.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from ouroboros.cli.errors import CALLERS, SOME_FAILED, print_error

    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        code = function(job)(cfg, as_json)
    except CALLERS as error:
        if sweep or debug:
            raise
        code = print_error(error)
    if code and not (sweep and code == SOME_FAILED):
        sys.exit(code)


def function(name: str) -> Callable:
    """Import a function by its module in this folder and its name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"ouroboros.cli.{module}"), attribute)
