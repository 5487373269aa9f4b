"""Errors of the caller: one line on stderr and exit code 2, for every command."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ouroboros.cli import CONF
from ouroboros.instantiate import unknown

SOME_FAILED = 3
"""The exit code of a run in which some samples failed."""
CALLERS = (ValueError, TypeError, OSError, HydraException, OmegaConfBaseException)


def report_cli_errors(command: Callable[[], int | None]) -> int | None:
    """Run a command and return its exit code; after an error of the caller's, print one line and
    return 2.

    With HYDRA_FULL_ERROR set, the whole traceback is shown.
    """
    if os.environ.get("HYDRA_FULL_ERROR"):
        return command()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra would print errors in its own way
    try:
        return command()
    except CALLERS as error:
        return print_error(error)
    finally:
        del os.environ["HYDRA_FULL_ERROR"]


def print_error(error: BaseException) -> int:
    """Print an error of the caller's as one line on stderr; return its exit code, 2."""
    print(f"error: {one_line(error)}", file=sys.stderr)
    return 2


def check_unused(results_dir: str | None) -> None:
    """Raise `ValueError` for a results folder with files in it; subfolders are fine."""
    if results_dir and any(path.is_file() for path in Path(results_dir).glob("*")):
        raise ValueError(f"results_dir={results_dir} is not empty: choose another folder")


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, without Hydra's list of search paths; for an unknown
    option or config, with the nearest match and the known names."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free some space and rerun; what was written is kept"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}; give another path"
    text = str(error).strip() or type(error).__name__
    text = " ".join(text.split("Config search path")[0].split())
    if option := re.search(r"Could not override '([^']+)'", text):
        parent = getattr(error.__cause__, "parent_node", None)
        known = sorted(map(str, parent)) if isinstance(parent, DictConfig) else []
        known = [key for key in known if key not in ("_target_", "hydra")]
        *path, name = option[1].split(".")
        names = unknown(name, known) if known else repr(name)
        return f"{'.'.join(path) or 'the config'} has no option {names}; +{option[1]}=... adds one"
    if config := re.search(r"Could not (?:load|find) '([\w/]+)/([^/']*)'", text):
        return unknown_config(config[1], config[2])
    return text


def unknown_config(group: str, name: str) -> str:
    """Return one line about a config that a group lacks."""
    if group == "hydra/launcher":
        return f"no {group}={name}: some come with pip install 'ouroboros-decoding[launchers]'"
    known = sorted(path.stem for path in (Path(CONF) / group).glob("[!_]*.yaml"))
    return f"there is no {group} {unknown(name, known)}"
