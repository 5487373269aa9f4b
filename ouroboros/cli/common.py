"""Compose a command's options with Hydra, and print its errors as one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hydra
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

import ouroboros.cli.options  # noqa: F401 - registers the options with Hydra
from ouroboros.conf import FOLDER
from ouroboros.core.instantiate import unknown

if TYPE_CHECKING:
    from rich.console import Console

CALLERS: tuple[type[BaseException], ...] = (
    *(ValueError, TypeError, OSError, ImportError, KeyboardInterrupt),
    *(HydraException, OmegaConfBaseException),
)
"""Errors that the user can fix, and Ctrl-C; `main` prints them in one line."""
PRINTED = "printed by the job of a sweep"
SOME_FAILED = 3
"""The exit code of a run in which some samples failed."""
PATHS = {"results_dir", "path", "target", "draft", "recording", "costs", "revision", "out"}
PATHS |= {"tokenizer", "prompts", "pool"}
"""Options whose values are texts, even if they look like numbers (2026_11_27)."""
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}


def composed(overrides: Sequence[str]) -> Any:
    """Return the options of `ouroboros bench`, with overrides as on the command line."""
    with initialize_config_dir(str(FOLDER), version_base="1.3"):
        return typed(compose("bench", overrides=[quoted(one) for one in overrides]))


def typed(cfg: DictConfig) -> Any:
    """Return a composed config as an object of its command's dataclass, without decoders that an
    experiment configures but `decoder=[...]` omits. Raises `ValueError` for an unknown decoder
    or one whose draft is not `model.draft`."""
    options: Any = OmegaConf.to_object(cfg)
    decoders = getattr(options, "decoder", {})
    for name in [name for name, own in decoders.items() if "_target_" not in own]:
        if not (FOLDER / "decoder" / f"{name}.yaml").exists():
            raise ValueError(unknown_config("decoder", name))
        del decoders[name]
    for name, own in decoders.items():
        if own.get("draft") not in (None, options.model.draft):
            reason = "all decoders draft with model.draft; give each draft its own run"
            raise ValueError(f"decoder.{name}.draft={own['draft']}: {reason}")
    return options


def parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """Return overrides as {dotted name: value}."""
    read = OverridesParser.create().parse_overrides([quoted(one) for one in overrides])
    return {one.key_or_group: one.value() for one in read}


def run_hydra(name: str, argv: Sequence[str], run: Callable[[Any], int]) -> int:
    """Compose a command's config and call `run` with it (in a sweep once per job); return the exit
    code.

    A sweep skips finished jobs, and continues after failed samples (its exit code is then that of
    such a job) and after jobs that cannot run.
    """
    failure, ended = list[BaseException](), {0}

    def job(cfg: DictConfig) -> None:
        sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        try:
            code = run(typed(cfg))
        except CALLERS as error:
            if not sweep:
                failure.append(error)  # Hydra would print an extra line
                return
            from ouroboros.bench.run.folder import Finished

            print(f"job {HydraConfig.get().job.num}: {one_line(error)}", file=sys.stderr)
            error.add_note(PRINTED)
            if not isinstance(error, Finished):
                raise
            return
        if code and not (sweep and code == SOME_FAILED):
            sys.exit(code)
        ended.add(code)

    argv = sorted(argv, key=lambda word: word not in ("-m", "--multirun"))  # Hydra wants -m first
    check_syntax(name, argv)
    sys.argv = [f"ouroboros {name}", *map(quoted, argv)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra formats errors itself
    try:
        hydra.main(version_base="1.3", config_path=str(FOLDER), config_name=name)(job)()
    except SystemExit as end:
        return int(end.code or 0)
    if failure:
        raise failure[0]
    return max(ended)


def check_syntax(command: str, arguments: Sequence[str]) -> None:
    """Raise `ValueError` for an argument that is neither NAME=VALUE nor a flag of Hydra's."""
    read, flags = get_args_parser().parse_known_args(list(arguments))
    for word in [*flags, *(word for word in read.overrides if "=" not in word and word[:1] != "~")]:
        remedy = f"write options as NAME=VALUE; 'ouroboros {command} --help' lists them"
        raise ValueError(f"{word}: {remedy}")


def quoted(override: str) -> str:
    """Quote the value of an override NAME=VALUE if it is a path, and expand its leading ~; expand
    the escapes of stop strings. Lists, sweeps and other arguments are unchanged.

    >>> quoted("results_dir=2026_11_27"), quoted("task.path=a(1).txt"), quoted("task.limit=3")
    ("results_dir='2026_11_27'", "task.path='a(1).txt'", 'task.limit=3')
    """
    name, equals, value = override.partition("=")
    if name == "task.stop":
        for escape, character in ESCAPES.items():
            value = value.replace(escape, character)
    is_path = name.split(".")[-1] in PATHS and value not in ("", "null")
    if is_path and "," not in value and value[0] not in "[{'\"":
        value = QuotedString(os.path.expanduser(value), Quote.single).with_quotes()
    return f"{name}{equals}{value}"


def terminal() -> Console:
    """Return the console on which tables are printed, of 120 columns if stdout is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def one_line(error: BaseException) -> str:
    """Return an error as one line with the remedy."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, KeyboardInterrupt):
        return "interrupted: rerun bench, tune or distill with the same folder to resume"
    if isinstance(error, ModuleNotFoundError):
        package, remedy = str(error.name).split(".")[0], "pip install 'ouroboros-decoding[bench]'"
        return f"this needs {package}, which is not installed: {remedy}"
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return unknown_config(group, name)
    if isinstance(error, OverrideParseException):
        remedy = "write options as NAME=VALUE, and texts in quotes, as NAME=\"['a','b']\""
        return f"cannot read {error.override}: {remedy}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free some space and rerun; what was written is kept"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}; give another path"
    if isinstance(cause, MissingMandatoryValue):
        return f"give {cause.full_key or cause.key}=..."
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return unknown_option(cause)
    if isinstance(cause, OmegaConfBaseException):
        return ": ".join(filter(None, (cause.full_key, str(cause.msg).splitlines()[0])))  # type: ignore[arg-type]
    return " ".join((str(error).strip() or type(error).__name__).split())


def unknown_option(error: OmegaConfBaseException) -> str:
    """Return a one-line error for an option that its config does not have."""
    option: Any = error.full_key
    *path, name = option.split(".")
    if path == ["decoder"]:
        return f"this run has no decoder {name}: add it to decoder=[...]"
    parent: Any = OmegaConf.to_container(error.parent_node, resolve=False)  # type: ignore[arg-type]
    known = sorted(key for key in map(str, parent) if key not in ("_target_", "hydra"))
    names = unknown(name, known, () if path else option_names(parent))
    free = path and (path[0] == "hydra" or path[-1].endswith(("options", "_args")))
    adds = f"; +{option}=... adds one" if free else ""
    return f"{'.'.join(path) or 'the config'} has no option {names}{adds}"


def option_names(config: Mapping, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a config's options."""
    for name, value in config.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from option_names(value, f"{prefix}{name}.")


def unknown_config(group: str, name: str) -> str:
    """Return a one-line error for a config `name` that the group conf/<group> does not have."""
    if group == "hydra/launcher":
        return f"no {group}={name}: install its plugin, such as hydra-joblib-launcher"
    configs = sorted(path.stem for path in (FOLDER / group).glob("[!_]*.yaml"))
    return f"there is no {group} {unknown(name, configs)}"
