"""What a command says when it is asked for something impossible: one line, and exit code 2."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

CALLERS = (ValueError, TypeError, OSError, HydraException, OmegaConfBaseException)


def told_in_one_line(main: Callable[[], None]) -> None:
    """Run a Hydra command; its own refusals (unknown names, broken overrides) become one line too.

    A launcher's workers find this folder through PYTHONPATH. With HYDRA_FULL_ERROR set, Hydra
    passes its exceptions on; a user who set it sees them whole.
    """
    here, before = str(Path(__file__).parent), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, before] if before else [here])
    if os.environ.get("HYDRA_FULL_ERROR"):
        main()
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except CALLERS as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)


def guarded(job: Callable[[], int]) -> None:
    """Run one job and exit with its code; an error of the caller's is one line and code 2.

    In a sweep the other jobs go on, and the first error is told again at the end.
    """
    try:
        code = job()
    except CALLERS as error:
        if HydraConfig.get().verbose or HydraConfig.get().mode == RunMode.MULTIRUN:
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)


def one_line(error: BaseException) -> str:
    """Return an error's message without its line breaks and Hydra's list of search paths, and with
    the remedy where Hydra gives none."""
    text = str(error).strip() or type(error).__name__
    text = " ".join(text.split("Config search path")[0].split())
    group = re.search(r"Could not load '([\w/]+)/[^/']*'", text)
    return f"{text} The names are those of the files in conf/{group[1]}." if group else text
