"""The commands: one file each; they parse, call the library, and print."""

from pathlib import Path

from ouroboros import conf

CONF = str(Path(conf.__file__).parent)
"""The folder of configs, the same in a checkout and in an installed package."""
