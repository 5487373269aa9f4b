"""The commands: one file each, and what they share. The only room that sees a Hydra config."""

import os
from pathlib import Path

CONF = str(Path(__file__).resolve().parents[1] / "conf")
"""The folder of configs, the same in a checkout and in an installed package."""


def place(path: Path) -> str:
    """Return a path as a line names it: from here down, or else in full.

    >>> place(Path("results/main")), place(Path("/nowhere/run"))
    ('results/main', '/nowhere/run')
    """
    near = os.path.relpath(path)
    return os.path.abspath(path) if near.split(os.sep)[0] == os.pardir else near
