"""Configs as plain values: composed, and with settings replaced."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from ouroboros.bench.run.config import check_whole
from ouroboros.cli import CONF
from ouroboros.cli.errors import unknown_config


def plain(cfg: DictConfig) -> dict:
    """Return a config, resolved, as plain values."""
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    return config


def chosen(config: dict) -> dict:
    """Return a command's config without the decoders that an experiment sets but `decoder=[...]`
    leaves out; they are named on stderr. Raises `ValueError` for an unknown one."""
    decoders = config.get("decoder") or {}
    absent = [name for name, own in decoders.items() if own and "_target_" not in own]
    for name in absent:
        if not Path(CONF, "decoder", f"{name}.yaml").exists():
            raise ValueError(unknown_config("decoder", name))
    if absent:
        print(f"set, but not in decoder=[...], so left out: {', '.join(absent)}", file=sys.stderr)
    return {**config, "decoder": {n: own for n, own in decoders.items() if n not in absent}}


def composed(overrides: Sequence[str], *, name: str = "config") -> dict:
    """Return a config of conf/, with overrides as on the command line."""
    with initialize_config_dir(CONF, version_base="1.3"):
        return chosen(plain(compose(name, overrides=list(overrides))))


def overrides_of(arguments: Sequence[str]) -> dict[str, object]:
    """Return NAME=VALUE arguments as values by dotted name. Raises `ValueError` for others."""
    found: dict[str, object] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            raise ValueError(f"{argument}: give NAME=VALUE")
        found[name] = yaml.safe_load(value)
    return found


def check_sizes(name: str, sizes: object) -> list[int]:
    """Return a list of whole numbers. Raises `ValueError` for anything else."""
    if not isinstance(sizes, list) or not sizes:
        raise ValueError(f"{name}={sizes}: give a list, as {name}=[1,8]")
    for size in sizes:
        check_whole(name, size)
    return sizes
