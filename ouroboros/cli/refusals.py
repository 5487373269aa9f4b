"""What a command says when it is asked for something impossible: one line, and exit code 2."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ouroboros.cli import CONF

SOME_FAILED = 3  # the exit code of a run of which some samples failed
CALLERS = (ValueError, TypeError, OSError, HydraException, OmegaConfBaseException)


def report_cli_errors(main: Callable[[], None]) -> None:
    """Run a Hydra command; its own refusals (unknown names, broken overrides) become one line too.

    With HYDRA_FULL_ERROR set, Hydra passes its exceptions on; a user who set it sees them whole.
    """
    if os.environ.get("HYDRA_FULL_ERROR"):
        main()
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except CALLERS as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)


def in_one_line(job: Callable[[], int]) -> int:
    """Do a job of a command without Hydra's syntax; return its code, or 2 after one line."""
    try:
        return job()
    except CALLERS as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def guarded(job: Callable[[], int]) -> None:
    """Run one job and exit with its code; an error of the caller's is one line and code 2.

    In a sweep the other jobs go on, after failed samples too, and the first error is told again at
    the end.
    """
    try:
        code = job()
    except CALLERS as error:
        if HydraConfig.get().verbose or HydraConfig.get().mode == RunMode.MULTIRUN:
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        code = 2
    if code and not (code == SOME_FAILED and HydraConfig.get().mode == RunMode.MULTIRUN):
        sys.exit(code)


def check_unused(results_dir: str | None) -> None:
    """Raise `ValueError` where files lie in a folder that results are to be written to; what
    `ouroboros evidence` keeps there is none of them, nor are folders of other runs."""
    files = Path(results_dir).glob("*") if results_dir else ()
    if any(path.is_file() and path.name != "evidence.json" for path in files):
        raise ValueError(f"results_dir={results_dir} is not empty: give another one")


def one_line(error: BaseException) -> str:
    """Return an error's message without its line breaks and Hydra's list of search paths, and with
    the names there are where one of an option or a config is not among them."""
    text = str(error).strip() or type(error).__name__
    text = " ".join(text.split("Config search path")[0].split())
    option = re.search(r"Could not override '([^']+)'", text)
    if option:
        return unknown_option(option[1], getattr(error.__cause__, "parent_node", None))
    config = re.search(r"Could not (?:load|find) '([\w/]+)/([^/']*)'", text)
    return unknown_config(config[1], config[2]) if config else text


def unknown_option(name: str, parent: object) -> str:
    """Return one line about an option that its config lacks; `parent` is the part of it where it
    was looked for, if it is known."""
    known = sorted(map(str, parent)) if isinstance(parent, DictConfig) else []
    known = [key for key in known if key not in ("_target_", "hydra")]
    near = difflib.get_close_matches(name.rsplit(".", 1)[-1], known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    there = f"; those there: {', '.join(known)}" if known else ""
    return f"there is no option {name}{hint}{there}; +{name}=... adds one where any may be"


def unknown_config(group: str, name: str) -> str:
    """Return one line about a config that a group lacks."""
    if group == "hydra/launcher":
        return (
            f"there is no {group}={name}: pip install 'ouroboros-decoding[launchers]' brings some"
        )
    known = sorted(path.stem for path in (Path(CONF) / group).glob("[!_]*.yaml"))
    return f"there is no {group}={name}; choose among {', '.join(known)}"
