"""The sources behind a config's classes from outside of the package: a user's drafter or task.

Invariant: a hash changes with any line of the class's module, or of a module beside it that it
imports, and with nothing else. Installed packages that a run's environment names are left to it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

KNOWN = frozenset(["ouroboros", "torch", "transformers", "optimum", "torchao"])


def sources(config: Mapping) -> dict[str, str]:
    """Return a short hash of the sources of each class, by where the config names it."""
    return {
        f"source of {where}": source_hash(target)
        for where, target in _targets(config, "")
        if target.partition(".")[0] not in KNOWN
    }


def source_hash(target: str) -> str:
    """Return the hash for a class's or function's dotted name; "" where no source is found."""
    module = target
    while module and _file(module) is None:
        module = module.rpartition(".")[0]
    digest = hashlib.sha256()
    for name, text in sorted(_texts(module, {}).items()):
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:16] if module else ""


def _targets(value: object, where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return
    for key, below in value.items():
        if key == "_target_":
            yield where, str(below)
        yield from _targets(below, f"{where}.{key}".lstrip("."))


def _file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    file = Path(spec.origin) if spec is not None and spec.origin else None
    return file if file is not None and file.suffix == ".py" else None


def _texts(module: str, found: dict[str, str]) -> dict[str, str]:
    """Add the text of a module, and of those in the same folder or package that it imports."""
    file = _file(module)
    if file is None or module in found:
        return found
    found[module] = file.read_text("utf-8")
    home = _file(module.partition(".")[0]) or file
    for name in _imports(found[module], module, file.name == "__init__.py"):
        other = _file(name)
        if other is not None and other.is_relative_to(home.parent):
            _texts(name, found)
    return found


def _imports(text: str, module: str, package: bool) -> Iterator[str]:
    """Yield the dotted names that a module imports, some of them of no module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if package else module.split(".")[:-1]
            base = parts[: len(parts) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield from (name, *(f"{name}.{alias.name}" for alias in node.names))
