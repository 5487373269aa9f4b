"""Who may import whom. The rooms are the map of the code; this keeps them.

A room is a folder of `ouroboros`, or a file of its top floor. Imports run downwards in the order of
`ROOMS`, the lowest first; inside a room no files import each other in a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ouroboros"
ROOMS = (
    *("instantiate", "tree", "trace", "select"),
    *("engine", "vocab", "decode", "processors", "standin", "costs"),
    *("audit", "drafters", "baselines", "model_wrappers", "decoders"),
    *("custom", "generate", "testing", "reference_pair"),
    *("bench.tasks", "bench.metrics", "bench.run", "bench.replay"),
    *("bench.report", "tuning", "cli", "__main__"),
)
PURE = (
    *("tree", "trace", "costs.surface", "costs.costs", "costs.predicted"),
    "drafters.pool",
    *(
        f"drafters.draft_tree.{one}"
        for one in ("compiled", "state", "index", "recycling", "mixture")
    ),
    *(
        f"drafters.draft_tree.{one}"
        for one in ("noise", "estimate", "kids", "grow", "worth", "learn")
    ),
    *(f"drafters.draft_tree.{one}" for one in ("step", "growth", "remembered", "weights")),
)


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `ouroboros`."""
    folders = [PACKAGE, ROOT / "baselines"]
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = parts if folder.name == "baselines" else parts[1:]
            found[".".join(name).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            module = node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def ours(name: str) -> set[str]:
    """The modules of ouroboros that a module imports, by their names below the package."""
    below = {one.removeprefix("ouroboros.") for one in imports(MODULES[name])}
    return {one for one in below if one in MODULES and MODULES[one].name != "__init__.py"} - {name}


def doors(name: str) -> set[str]:
    """The rooms whose own door (`__init__`) a module takes a name from."""
    found = {one.removeprefix("ouroboros.") for one in imports(MODULES[name])}
    return {one for one in found & set(ROOMS) if MODULES[one].name == "__init__.py"}


def room(module: str) -> str:
    return next(one for one in ROOMS if module == one or module.startswith(f"{one}."))


def inner() -> Iterator[str]:
    """Every module but the rooms' own doors."""
    return (name for name, path in MODULES.items() if path.name != "__init__.py")


def test_every_module_has_a_room():
    assert {room(name) for name in inner()} <= set(ROOMS)


@pytest.mark.parametrize("name", ROOMS)
def test_imports_run_downwards(name):
    own = [module for module in inner() if room(module) == name]
    allowed = ROOMS[: ROOMS.index(name) + 1]
    for module in own:
        above = {one for one in ours(module) if room(one) not in allowed}
        above |= doors(module) - set(allowed)
        assert not above, f"{module} imports from above: {above}"


def test_no_circle():
    list(TopologicalSorter({name: ours(name) for name in inner()}).static_order())


@pytest.mark.parametrize("name", PURE)
def test_data_knows_no_torch(name):
    tops = {one.split(".")[0] for one in imports(MODULES[name])}
    assert not tops & {"torch", "transformers"}


def test_the_method_never_imports_what_it_is_measured_against():
    method = ("drafters", "engine", "audit", "decode", "select", "tree", "growing", "costs")
    for name in inner():
        if room(name) in method:
            assert not {one for one in ours(name) if room(one) == "baselines"}, name


def test_only_commands_see_hydra():
    for name in inner():
        tops = {one.split(".")[0] for one in imports(MODULES[name])}
        assert room(name) == "cli" or not tops & {"hydra", "omegaconf"}, name


def test_no_search_path_is_patched():
    for folder in ("ouroboros", "baselines", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "sys.path" not in path.read_text(), path


def test_the_package_never_imports_a_script():
    scripts = {path.stem for path in (ROOT / "scripts").rglob("*.py")}
    for name in inner():
        assert not imports(MODULES[name]) & (scripts | {"scripts"}), name
