"""The commands: one file each; they parse, call the library, and print."""

import os
from pathlib import Path

from ouroboros import conf

CONF = str(Path(conf.__file__).parent)
"""The folder of configs, the same in a checkout and in an installed package."""


def place(path: Path) -> str:
    """Return a path as a line names it: from here down, or else in full.

    >>> place(Path("results/main")), place(Path("/nowhere/run"))
    ('results/main', '/nowhere/run')
    """
    near = os.path.relpath(path)
    return os.path.abspath(path) if near.split(os.sep)[0] == os.pardir else near
