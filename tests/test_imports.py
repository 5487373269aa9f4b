"""Imports run downwards only, in the order of docs/architecture.md.

A room is a folder of `ouroboros` or a file beside them. Imports run downwards in the order of
`ROOMS`, the lowest first, and no files import each other in a circle.
"""

import ast
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    *("core", "engine", "models.vocab", "calls", "decode", "models", "costs"),
    *("audit", "drafters", "baselines", "decoder_factory", "integrations", "testing"),
    *("bench.tasks", "bench.metrics", "bench.run", "lm_eval", "inspect_ai"),
    *("bench.replay", "bench.report", "tuning", "cli", "__main__"),
)
WITHOUT_TORCH = (
    *("core.tree", "core.trace", "costs.surface", "costs.costs"),
    *("drafters.pool", "drafters.draft_tree"),
)
METHOD = ("core", "engine", "calls", "decode", "costs", "audit", "drafters")


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `ouroboros`."""
    found = {}
    for folder in (ROOT / "ouroboros", ROOT / "baselines"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[folder.name == "ouroboros" :])
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()
INNER = [name for name, path in MODULES.items() if path.name != "__init__.py"]


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
    """The package's modules and rooms that a module imports, by their names below the package."""
    found = {one.removeprefix("ouroboros.") for one in imports(MODULES[name])} - {name}
    inner = {one for one in found & set(MODULES) if MODULES[one].name != "__init__.py"}
    return inner | (found & set(ROOMS) & set(MODULES))


def tops(name: str) -> set[str]:
    return {one.split(".")[0] for one in imports(MODULES[name])}


def room(module: str) -> str:
    return next(one for one in ROOMS if module == one or module.startswith(f"{one}."))


@pytest.mark.parametrize("name", INNER)
def test_a_module_imports_downwards(name):
    allowed = ROOMS[: ROOMS.index(room(name)) + 1]
    assert not {one for one in ours(name) if room(one) not in allowed}
    if room(name) in METHOD:
        assert not {one for one in ours(name) if room(one) == "baselines"}
    if name.startswith(WITHOUT_TORCH):
        assert not tops(name) & {"torch", "transformers"}
    if room(name) != "cli":
        assert "hydra" not in tops(name), "only commands see Hydra"
        assert "omegaconf" not in tops(name) or name == "bench.run.config"


def test_no_circle():
    inner = {name: ours(name) & set(INNER) for name in INNER}
    list(TopologicalSorter(inner).static_order())


def test_every_folder_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    for path in (path for path in MODULES.values() if path.name == "__init__.py"):
        parts = path.parent.relative_to(ROOT).parts
        assert ".".join(parts if parts[0] == "ouroboros" else ("ouroboros", *parts)) in listed


def test_the_package_imports_no_script_and_nothing_patches_the_search_path():
    scripts = {path.stem for path in (ROOT / "scripts").rglob("*.py")} | {"scripts"}
    for path in [*MODULES.values(), *(ROOT / "scripts").rglob("*.py")]:
        own_process = path.name == "sandbox_child.py"
        assert own_process or "sys.path" not in path.read_text(), path
    assert not [name for name in INNER if tops(name) & scripts]
