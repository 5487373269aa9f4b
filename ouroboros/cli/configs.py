"""Configs as plain values: composed, with settings replaced, held against the classes they name.

Invariant: an option that a class does not know, or a value of another type, is one line that names
it. No model is loaded here, and torch is not needed.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from ouroboros.cli import CONF
from ouroboros.cli.refusals import unknown_config

SPACES: dict[str, dict[str, list]] = {
    path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted(Path(CONF).glob("tune/*"))
}
"""By decoder, the values of each setting that a search may try: conf/tune."""
KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (int, "a whole number"),
    "int | None": ((int, NoneType), "a whole number, or null"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a name"),
}


def plain(cfg: DictConfig) -> dict:
    """Return a config, resolved, as plain values."""
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    return config


def chosen(config: dict) -> dict:
    """Return a command's config without the decoders that an experiment sets but `decoder=[...]`
    leaves out; they are named on stderr. Raises `ValueError` for one that there is not."""
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


def replaced(options: Mapping, settings: Mapping[str, object]) -> dict:
    """Return options with some replaced or added, by their dotted names."""
    config = OmegaConf.create(dict(options))
    for key, value in settings.items():
        OmegaConf.update(config, key, value, force_add=True)
    return plain(config)


def check_arguments(options: Mapping, what: str) -> None:
    """Raise `ValueError` for options that the class in `_target_` does not take, or not so."""
    parameters = parameters_of(options, what)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name, value in options.items():
        if name == "_target_":
            continue
        if name not in parameters:
            known = ", ".join(parameters)
            raise ValueError(f"{what} has no option {name!r}: its options are {known}")
        wanted, words = KINDS.get(parameters[name].annotation, (object, ""))
        number = wanted not in (bool, object)
        if not isinstance(value, wanted) or (number and isinstance(value, bool)):
            raise ValueError(f"{what}.{name}={value}: give {words}")


def parameters_of(options: Mapping, what: str) -> Mapping[str, inspect.Parameter]:
    """Return what the class in `_target_` takes, by name."""
    return inspect.signature(class_of(options["_target_"], what)).parameters


def class_of(name: str, what: str) -> Callable:
    """Return the class of that name. Raises `ValueError` where there is none, and
    `ModuleNotFoundError` where a package that it needs is not installed."""
    module, _, own = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), own)
        if callable(found):
            return found
        raise AttributeError(own)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"{what}._target_={name}: there is no such class") from error
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{what}._target_={name}: there is no such class") from error


def called(make: Callable, what: str):
    """Call `make`; arguments that it does not take become the caller's error."""
    try:
        return make()
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error
