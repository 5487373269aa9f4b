"""Helpers that commands share: configs as plain values, tables, and one-line errors."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ouroboros.conf import FOLDER
from ouroboros.instantiate import unknown

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from ouroboros.bench.run.folder import ResultsFolder

CALLERS = (
    *(ValueError, TypeError, OSError, HydraException, OmegaConfBaseException),
    *(ImportError, KeyboardInterrupt),
)
"""Errors that the user can fix, and Ctrl-C; `main` prints them in one line."""
PATHS = ("results_dir", "path", "target", "draft", "recording", "runs", "costs", "revision")
"""Options whose values are texts, even if they look like numbers (2026_11_27)."""
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}
PIPE_WIDTH = 120
"""The width of tables, in characters, if stdout is not a terminal."""


def composed(overrides: Sequence[str], *, name: str = "config") -> dict:
    """Return the config conf/<name>.yaml as plain values, with overrides as on the command line."""
    with initialize_config_dir(str(FOLDER), version_base="1.3"):
        return plain(compose(name, overrides=[quoted(one) for one in overrides]))


def quoted(override: str) -> str:
    """Return an override NAME=VALUE with the value in quotes if Hydra could not parse it, or would
    read a path as a number. Expand a leading ~ and, in stop strings, the escapes \\n, \\t and \\r,
    which shells leave as they are. Other arguments are unchanged.

    Raises `ValueError` for a list or mapping that Hydra cannot parse.

    >>> quoted("results_dir=2026_11_27"), quoted("task.path=a(1).txt"), quoted("task.limit=3")
    ("results_dir='2026_11_27'", "task.path='a(1).txt'", 'task.limit=3')
    """
    name, equals, value = override.partition("=")
    if not equals or name.startswith("-"):
        return override
    value = os.path.expanduser(value)
    if name == "task.stop":
        value = re.sub(r"\\[ntr]", lambda escape: ESCAPES[escape[0]], value)
    try:
        found = OverridesParser.create().parse_override(f"{name}={value}").value()
        fits = not isinstance(found, int | float) or name.split(".")[-1] not in PATHS
    except HydraException as error:
        if fits := value.startswith(("[", "{", "'", '"')):
            raise ValueError(
                f"cannot read {override}: close brackets, and put texts in quotes, as ['a','b']"
            ) from error
    return f"{name}={value if fits else QuotedString(value, Quote.single).with_quotes()}"


def plain(cfg: DictConfig) -> dict:
    """Return a resolved config as plain values.

    Decoders that an experiment configures but `decoder=[...]` omits are dropped and named on
    stderr. Raises `ValueError` for an unknown decoder or one whose draft is not `model.draft`.
    """
    config: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    decoders = config.get("decoder") or {}
    absent = [
        name
        for name, own in decoders.items()
        if own and not (isinstance(own, dict) and "_target_" in own)
    ]
    for name in absent:
        if not (FOLDER / "decoder" / f"{name}.yaml").exists():
            raise ValueError(unknown_config("decoder", name))
    if absent:
        print(f"set, but not in decoder=[...], so left out: {', '.join(absent)}", file=sys.stderr)
    decoders = {name: own for name, own in decoders.items() if name not in absent}
    for name, own in decoders.items():
        if own and own.get("draft") not in (None, config["model"]["draft"]):
            reason = "all decoders draft with model.draft; give each draft its own run"
            raise ValueError(f"decoder.{name}.draft={own['draft']}: {reason}")
    return {**config, "decoder": decoders}


def new_folder(results_dir: str | None) -> ResultsFolder | None:
    """Return the results folder, created if missing; None without `results_dir`. Raises
    `ValueError` if it contains files (subfolders are allowed)."""
    from ouroboros.bench.run.folder import ResultsFolder

    if not results_dir:
        return None
    path = Path(results_dir)
    if any(file.is_file() for file in path.glob("*")):
        raise ValueError(f"results_dir={results_dir} is not empty: choose another folder")
    path.mkdir(parents=True, exist_ok=True)
    return ResultsFolder(path)


def terminal() -> Console:
    """Return the console on which tables are printed."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def print_table(table: pd.DataFrame) -> None:
    """Print a table: floats with two decimals, "-" in place of NaN."""
    from ouroboros.bench.report.tables import terminal_table

    cells = known(table, "-").map(lambda one: f"{one:.2f}" if isinstance(one, float) else str(one))
    terminal().print(terminal_table(cells))


def known(table: pd.DataFrame, missing: Any = None) -> pd.DataFrame:
    """Return a table with its NaN replaced by `missing` (by default None, for JSON)."""
    return table.astype(object).where(table.notna(), missing)


def one_line(error: BaseException) -> str:
    """Return an error as one line, without Hydra's list of search paths; for an unknown option or
    config, add the closest match and the known names."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted: rerun bench, profile, tune or distill with the same folder to resume"
    text = " ".join((str(error).strip() or type(error).__name__).split())
    if isinstance(error, ModuleNotFoundError):
        package, remedy = str(error.name).split(".")[0], "pip install 'ouroboros-decoding[bench]'"
        text = f"this needs {package}, which is not installed: {remedy}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = "the disk is full: free some space and rerun; what was written is kept"
    elif isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}; give another path"
    elif word := re.search(r"Error parsing override '(.+?)' missing EQUAL", text):
        text = f"{word[1]}: write options as NAME=VALUE"
    elif option := re.search(r"Could not override '([^']+)'", text):
        parent = getattr(error.__cause__, "parent_node", None)
        options = sorted(map(str, parent)) if isinstance(parent, DictConfig) else []
        options = [key for key in options if key not in ("_target_", "hydra")]
        *path, name = option[1].split(".")
        nested = [] if path else option_names(OmegaConf.to_container(parent, resolve=False))  # type: ignore[arg-type]
        names = unknown(name, options, nested) if options else repr(name)
        if path[1:] and isinstance(parent, DictConfig) and parent._key() == "decoder":
            return f"this run has no decoder {path[1]}: add it to decoder=[...]"
        free = path and (path[0] == "hydra" or path[-1].endswith(("options", "_args")))
        adds = f"; +{option[1]}=... adds one" if free else ""
        text = f"{'.'.join(path) or 'the config'} has no option {names}{adds}"
    elif config := re.search(r"Could not (?:load|find) '([\w/]+)/([^/']*)'", text):
        text = unknown_config(config[1], config[2])
    return text.split("Config search path")[0].strip()


def option_names(config: Mapping, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a config's options."""
    for name, value in config.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from option_names(value, f"{prefix}{name}.")


def unknown_flag(command: str, flag: str, config: Mapping) -> str:
    """Return a one-line error for a flag such as --limit, which Hydra's syntax does not have."""
    name = flag.lstrip("-").partition("=")[0].replace("-", "_")
    found = (full for full in option_names(config) if full.rpartition(".")[2] == name)
    return (
        f"{flag}: write options as NAME=VALUE, such as {next(found, 'max_new')}=VALUE; "
        f"'ouroboros {command} --help' lists them"
    )


def unknown_config(group: str, name: str) -> str:
    """Return a one-line error for a config `name` that the group conf/<group> does not have."""
    if group == "hydra/launcher":
        return f"no {group}={name}: install its plugin, such as hydra-joblib-launcher"
    known = sorted(path.stem for path in (FOLDER / group).glob("[!_]*.yaml"))
    return f"there is no {group} {unknown(name, known)}"
