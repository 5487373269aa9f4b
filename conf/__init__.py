"""The Hydra configs of all commands; installed as `ouroboros.conf`."""

from pathlib import Path

FOLDER = Path(__file__).parent
