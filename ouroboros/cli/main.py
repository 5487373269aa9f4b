"""The command line: `ouroboros COMMAND [WORDS] NAME=VALUE ...`, in Hydra's override syntax.

The options of a command are a dataclass in `ouroboros.cli.options`, its configs are in conf, its
help is conf/help/COMMAND.txt. A command's module, and with it torch, is imported when the command
runs, never for its help.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
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
    "replay": "run drafters on recorded text, without the target",
    "tune": "search every decoder's best settings, with the same effort for each",
    "distill": "make a draft for a model, from the model itself",
}
WORDS = {"generate": '"PROMPT"', "report": "FOLDER ...", "audit": "FOLDER"}
"""Commands that take words before their options."""
FLAGS = {
    **{"--target": "model.target", "--draft": "model.draft", "--decoder": "decoder"},
    **{"--max-new": "max_new", "--temperature": "temperature", "--seed": "seed", "--out": "out"},
}
"""Options that may also be given as flags, as in version 0.2: --max-new 8 is max_new=8."""
USAGE = f"""\
Lossless decoding acceleration, and a benchmark of lossless decoders.

usage: ouroboros COMMAND [NAME=VALUE ...]

{chr(10).join(f"  {name:<10}{summary}" for name, summary in COMMANDS.items())}

'ouroboros COMMAND --help' describes a command, 'ouroboros --version' prints the
version."""


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
    from ouroboros.cli.common import CALLERS, PRINTED, one_line

    try:
        return run_command(name, rest)
    except CALLERS as error:
        stopped = isinstance(error, KeyboardInterrupt)
        if PRINTED not in getattr(error, "__notes__", ()):
            print(("" if stopped else "error: ") + one_line(error), file=sys.stderr)
        return 130 if stopped else 2


def run_command(name: str, argv: Sequence[str]) -> int:
    """Split a command's arguments into words and options, and run it; return the exit code."""
    from ouroboros.cli.common import run_hydra

    as_json, words = "--json" in argv, list[str]()
    rest = [argument for argument in argv if argument != "--json"]
    if name == "generate":  # a prompt may contain anything
        words = rest[:1]
    elif name in WORDS:
        words = list(takewhile(lambda word: "=" not in word and word[:1] != "-", rest))
    rest = list(without_flags(rest[len(words) :]))
    if name in WORDS and not words and not any(word[:1] == "-" for word in rest):
        raise ValueError(f"{WORDS[name]} is missing: ouroboros {name} {WORDS[name]} NAME=VALUE ...")
    if name == "audit":
        return call(name, words, rest, as_json=as_json)
    given = (words,) if name in WORDS else ()
    return run_hydra(name, rest, lambda options: call(name, options, *given, as_json=as_json))


def without_flags(argv: Sequence[str]) -> Iterator[str]:
    """Yield arguments, with the flags in `FLAGS` written as options.

    >>> list(without_flags(["--target", "gpt2", "--max-new=8", "seed=1"]))
    ['model=hf', 'model.target=gpt2', 'max_new=8', 'seed=1']
    """
    left = iter(argv)
    for word in left:
        flag, equals, value = word.partition("=")
        if flag == "--target":
            yield "model=hf"
        yield f"{FLAGS[flag]}={value if equals else next(left, '')}" if flag in FLAGS else word


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
