"""The commands: one file each, and what they share. The only room that sees a Hydra config."""

from pathlib import Path

CONF = str(Path(__file__).resolve().parents[1] / "conf")
"""The folder of configs, the same in a checkout and in an installed package."""
