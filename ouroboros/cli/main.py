"""The command line: `ouroboros COMMAND [WORDS] NAME=VALUE ...`, in Hydra's override syntax.

The options of a command are a dataclass in `ouroboros.cli.options`, its configs are in conf, its
help is conf/help/COMMAND.txt. A command's module, and with it torch, is imported when the command
runs, never for its help.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import ouroboros
from ouroboros.conf import FOLDER
from ouroboros.core.instantiate import unknown

COMMANDS = {
    "generate": "decode one prompt; colours show each token's source",
    "bench": "run decoders over a task on one pair of models, and compare them",
    "report": "make tables, plots and an HTML page from results folders",
    "audit": "check that a run is lossless, with a verdict on every completion",
    "profile": "time calls of both models, and the phases of each step",
    "replay": "run drafters on recorded text, without the target",
    "tune": "search every decoder's best settings, with the same effort for each",
    "distill": "make a draft for a model, from the model itself",
}
WORDS = {"generate": '"PROMPT"', "report": "FOLDER ...", "audit": "FOLDER"}
"""Commands that take words before their options."""
FLAGS = {
    "generate": "model.target model.draft task.template decoder max_new temperature seed race",
    "report": "out costs remake tokenizer wide",
}
"""Options that may also be given as flags, as in version 0.2: --max-new 8 is max_new=8."""
SWITCHES = ("race", "remake", "wide")
"""Flags without a value."""
USAGE = f"""\
Lossless decoding acceleration, and a benchmark of lossless decoders.

usage: ouroboros COMMAND [NAME=VALUE ...]

{chr(10).join(f"  {name:<10}{summary}" for name, summary in COMMANDS.items())}

'ouroboros COMMAND --help' describes a command, 'ouroboros --version' prints the
version."""
PRINTED = "printed by the job of a sweep"
SOME_FAILED = 3
"""The exit code of a run in which some samples failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument; return its exit code.

    A user error prints one line on stderr and gives exit code 2.
    """
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if name in ("--help", "-h", "--version"):
        print(f"ouroboros {ouroboros.__version__}" if name == "--version" else USAGE)
        return 0
    if name not in COMMANDS:
        print(f"error: there is no command {unknown(name, COMMANDS)}", file=sys.stderr)
        return 2
    if {"--help", "-h"} & set(rest):
        print((FOLDER / "help" / f"{name}.txt").read_text("utf-8"), end="")
        return 0
    from ouroboros.cli.common import CALLERS, one_line

    try:
        return run_command(name, rest)
    except CALLERS as error:
        stopped = isinstance(error, KeyboardInterrupt)
        if PRINTED not in getattr(error, "__notes__", ()):
            print(("" if stopped else "error: ") + one_line(error), file=sys.stderr)
        return 130 if stopped else 2


def run_command(name: str, argv: Sequence[str]) -> int:
    """Split a command's arguments into words and options, and run it; return the exit code."""
    as_json, words = "--json" in argv, list[str]()
    rest = [one for one in argv if one != "--json"]
    if name in WORDS:
        if name == "generate":  # a prompt may contain anything
            words = rest[:1]
        else:
            words = list(takewhile(lambda one: "=" not in one and one[:1] != "-", rest))
        rest = without_flags(name, rest[len(words) :])
        if not words and not any(one[:1] == "-" for one in rest):
            raise ValueError(
                f"{WORDS[name]} is missing: ouroboros {name} {WORDS[name]} NAME=VALUE ..."
            )
    if name == "audit":
        return call("audit", words, rest, as_json=as_json)
    return run_hydra(name, words, rest, as_json=as_json)


def without_flags(name: str, argv: Sequence[str]) -> list[str]:
    """Return arguments with the flags in `FLAGS` written as options.

    >>> without_flags("generate", ["--target", "gpt2", "--max-new=8", "--race"])
    ['model=hf', 'model.target=gpt2', 'max_new=8', 'race=true']
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for option in FLAGS.get(name, "").split():
        how: dict = {"action": "store_const", "const": "true"} if option in SWITCHES else {}
        flag = option.rpartition(".")[2].replace("_", "-")
        parser.add_argument(f"--{flag}", dest=option, **how)
    flags, rest = parser.parse_known_args(argv)
    given = {option: value for option, value in vars(flags).items() if value is not None}
    hub = ["model=hf"] if "model.target" in given else []
    return [*hub, *(f"{option}={value}" for option, value in given.items()), *rest]


def call(name: str, *arguments: Any, as_json: bool) -> int:
    """Call a command's function; return its exit code.

    With `as_json`, or if stdout is not a terminal, print its JSON document as the last line.
    SIGTERM interrupts the command as Ctrl-C does.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = getattr(importlib.import_module(f"ouroboros.cli.{name}"), name)
    from transformers.utils.logging import set_tqdm_hook

    # Show transformers' bars only while weights take longer than 2 s to load.
    set_tqdm_hook(lambda make, args, options: make(*args, **{**options, "delay": 2}))
    code, document = command(*arguments)
    if document is not None and (as_json or not sys.stdout.isatty()):
        print(json.dumps(document), flush=True)
    return code


def run_hydra(name: str, words: Sequence[str], argv: Sequence[str], *, as_json: bool) -> int:
    """Compose a command's config and run it (in a sweep once per job); return the exit code.

    A sweep continues after failed samples (its exit code is then that of such a job) and after jobs
    that cannot run, and skips finished jobs.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from ouroboros.cli.common import CALLERS, check_syntax, one_line, quoted, typed

    rest = sorted(argv, key=lambda one: one not in ("-m", "--multirun"))  # Hydra wants -m first
    check_syntax(name, rest)
    sys.argv = [f"ouroboros {name}", *map(quoted, rest)]
    failure: list[BaseException] = []
    ended = {0}  # exit codes of the jobs

    def job(cfg) -> None:
        sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        try:
            code = call(name, typed(cfg), *([words] if name in WORDS else []), as_json=as_json)
        except CALLERS as error:
            if sweep:
                from ouroboros.bench.run.folder import Finished

                print(f"job {HydraConfig.get().job.num}: {one_line(error)}", file=sys.stderr)
                error.add_note(PRINTED)
                if isinstance(error, Finished):
                    return
                raise
            failure.append(error)  # Hydra would print an extra line
            return
        if code and not (sweep and code == SOME_FAILED):
            sys.exit(code)
        ended.add(code)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra formats errors itself
    try:
        hydra.main(version_base="1.3", config_path=str(FOLDER), config_name=name)(job)()
    except SystemExit as end:
        return int(end.code or 0)
    if failure:
        raise failure[0]
    return max(ended)
