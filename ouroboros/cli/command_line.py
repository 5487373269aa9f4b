"""The one door to all commands: `ouroboros COMMAND ...`, or `python -m ouroboros COMMAND ...`.

What can be typed is read here: of commands with Hydra's syntax by their config and its help
(conf/hydra/help), of the others by `ouroboros.cli.arguments`. Invariant: a command's own
module, and with it torch and the rest, is imported when the command runs, never for its help.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import hydra
from omegaconf import DictConfig

import ouroboros
from ouroboros.cli import CONF, arguments
from ouroboros.cli.refusals import guarded, in_one_line, report_cli_errors


@dataclass(frozen=True)
class Command:
    """`job` is the function that does it, as module.function of this folder: of a config, of parsed
    arguments, or (with neither) of nothing, where it reads the command line itself. One without a
    `summary` is for those who work on the project, and not listed."""

    job: str
    summary: str | None = None
    config: str | None = None
    parser: Callable[[], argparse.ArgumentParser] | None = None

    def run(self) -> int | None:
        """Read the rest of the command line and do it; return the exit code (None is 0)."""
        if self.config is not None:
            head = hydra.main(version_base="1.3", config_path=CONF, config_name=self.config)
            report_cli_errors(head(partial(_guarded, self.job)))
            return None
        if self.parser is not None:
            options = self.parser().parse_intermixed_args()
            return in_one_line(lambda: found(self.job)(options))
        return found(self.job)()


COMMANDS = {
    "generate": Command(
        "generate.generate",
        "decode one prompt, coloured by who proposed each token",
        parser=arguments.generate,
    ),
    "bench": Command(
        "bench.bench",
        "run decoders over a task on one pair of models, and compare them",
        config="config",
    ),
    "report": Command(
        "report.report",
        "make tables, plots and an HTML page from results folders",
        parser=arguments.report,
    ),
    "audit": Command(
        "audit.audit",
        "is a run lossless? judge every completion of a results folder",
        parser=arguments.audit,
    ),
    "advise": Command(
        "advise.advise",
        "predict each decoder's speed here, its best settings, what fits",
        config="advise",
    ),
    "profile": Command(
        "profiling.profile",
        "say where the time goes: what calls cost, what steps consist of",
        config="profiling",
    ),
    "replay": Command(
        "replay.replay_all",
        "run drafters against a recording, with no target",
        config="replay",
    ),
    "agreement": Command(
        "agreement.agreement",
        "say what a draft of each agreement is worth on recorded text",
        config="agreement",
    ),
    "tune": Command(
        "tune.tune", "search every decoder's settings with one budget", parser=arguments.tune
    ),
}
"""By what is typed."""


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that the first argument names; return its exit code (None is 0)."""
    parser = argparse.ArgumentParser(
        prog="ouroboros",
        description=ouroboros.__doc__,
        epilog="'ouroboros COMMAND --help' says what a command takes.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {ouroboros.__version__}")
    doors = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        if command.summary is None:
            doors.add_parser(name, add_help=False)
        else:
            doors.add_parser(name, help=command.summary, add_help=False)
    chosen, rest = parser.parse_known_args(argv)
    sys.argv = [f"ouroboros {chosen.command}", *rest]
    try:
        return COMMANDS[chosen.command].run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "ouroboros":
            raise
        print(f"error: {missing(error.name)}", file=sys.stderr)
        return 2


def found(job: str) -> Callable:
    """Return a function by its module in this folder and its name."""
    module, _, name = job.rpartition(".")
    return getattr(importlib.import_module(f"ouroboros.cli.{module}"), name)


def missing(module: str) -> str:
    """Return one line about a package that is not installed, with what brings it."""
    package = module.split(".")[0]
    return f"this needs {package}, which is not installed: pip install 'ouroboros-decoding[bench]'"


def _guarded(job: str, cfg: DictConfig) -> None:
    guarded(lambda: found(job)(cfg))
