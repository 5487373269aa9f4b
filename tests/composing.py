"""The shipped configs, composed as a command composes them."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import ouroboros.cli.options  # noqa: F401 - registers the options with Hydra

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"


def names(group: str) -> list[str]:
    """The configs of a group."""
    return sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml"))


def composed(*overrides: str, name: str = "bench") -> dict:
    """A config as plain values."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(name, overrides=list(overrides))
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
