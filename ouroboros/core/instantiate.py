"""Build objects from configs: mappings with a class, `_target_`, and its arguments.

Arguments are checked against the class's signature first. A misspelt name or a value of the wrong
type raises a one-line error with the nearest match. Hydra is not needed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from os import PathLike
from types import NoneType

TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (int, "a whole number"),
    "int | None": ((int, NoneType), "a whole number, or null"),
    "float": ((int, float), "a number"),
    "float | None": ((int, float, NoneType), "a number, or null"),
    "bool": (bool, "true or false"),
    "str": (str, "a name"),
    "str | None": ((str, PathLike, NoneType), "a name, or null"),
    "Mapping | None": ((Mapping, NoneType), "settings, as {name: value}, or null"),
    "Mapping": (Mapping, "settings, as {name: value}"),
}
"""For each annotation of a parameter: the accepted types, and their description in errors."""


def find_class(path: str, what: str) -> Callable:
    """Return the class or function at a dotted path; `what` names the config in errors.

    Raises `ValueError` if it does not exist, `ModuleNotFoundError` if its module imports a package
    that is not installed.
    """
    module, _, name = path.rpartition(".")
    try:
        value = getattr(importlib.import_module(module), name)
        if callable(value):
            return value
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
    except (AttributeError, ValueError):
        pass
    raise ValueError(f"{what}._target_={path}: there is no such class")


def parameters_of(config: Mapping, what: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a config's class by name. Raises `ValueError` without `_target_`."""
    if "_target_" not in config:
        raise ValueError(f"{what}={config}: give its class too, as {what}._target_=module.Class")
    return inspect.signature(find_class(config["_target_"], what)).parameters


def check_arguments(config: Mapping, what: str) -> None:
    """Raise `ValueError` for an argument that the class does not have, or of the wrong type. Accept
    all arguments of a class that takes **kwargs."""
    parameters = parameters_of(config, what)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name, value in config.items():
        if name == "_target_":
            continue
        if name not in parameters:
            raise ValueError(f"{what} has no option {unknown(name, parameters)}")
        wanted, description = TYPES.get(parameters[name].annotation, (object, ""))
        number = wanted not in (bool, object)
        if not isinstance(value, wanted) or (number and isinstance(value, bool)):
            raise ValueError(f"{what}.{name}={value}: give {description}")


def unknown(name: str, known: Iterable[str], similar: Iterable[str] = ()) -> str:
    """Return the text of an error about an unknown name. It lists `known` and suggests a dotted
    name in `similar` that ends in `name`, else the closest name in `known` and `similar`."""
    known, similar = list(known), list(similar)
    nested = [full for full in similar if full.endswith(f".{name}")]
    near = nested or get_close_matches(name, [*known, *similar], n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{name!r}{hint}; choose from {', '.join(known) or 'none: it takes no options'}"


def instantiate(config: Mapping, what: str, **objects: object):
    """Build and return the object of a config; objects of nested configs are built first.

    `objects` are arguments that a config cannot contain, such as a model. Raises `ValueError` as
    `check_arguments` does, and for a missing argument.
    """
    check_arguments(config, what)
    arguments = {
        name: instantiate(value, f"{what}.{name}")
        if isinstance(value, Mapping) and "_target_" in value
        else value
        for name, value in config.items()
        if name != "_target_"
    }
    try:
        return find_class(config["_target_"], what)(**arguments, **objects)
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error


def check_whole(name: str, value: object, *, least: int = 1, null: bool = False) -> None:
    """Raise `ValueError` unless `value` is an int of `least` or more, or None if `null` is true."""
    if value is None and null:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        remedy = f"give a whole number, {least} or more" + (", or null" if null else "")
        raise ValueError(f"{name}={value}: {remedy}")
