"""Who may import whom. The layers are the map of the code; this keeps them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS: dict[str, set[str]] = {
    "growing": set(),
    "tree": {"growing"},
    "trace": set(),
    "pool": set(),
    "cache": set(),
    "kernels": set(),
    "attention": {"kernels"},
    "quantised": set(),
    "support": {"cache", "quantised"},
    "choose": {"tree"},
    "engine": {"cache", "support", "tree"},
    "blocks": set(),
    "static": {"blocks", "cache", "engine", "support", "tree"},
    "model": {"attention", "cache", "choose", "engine", "static", "support", "tree"},
    "vocab": {"model"},
    "processors": {"choose", "tree"},
    "plainly": {"quantised"},
    "shift": set(),
    "noise": set(),
    "audit": {"choose", "model", "noise", "plainly", "shift", "tree"},
    "decode": {"choose", "model", "trace", "tree"},
    "lookahead": {"choose", "growing", "model", "pool", "tree"},
    "policy": set(),
    "drafting": {"choose", "tree"},
    "pace": {"drafting", "pool"},
    "learning": {"pool", "tree"},
    "drafter": {
        *("choose", "decode", "drafting", "growing", "learning", "lookahead", "model"),
        *("pace", "policy", "pool", "tree"),
    },
    "generate": {"choose", "decode", "drafter", "lookahead", "model", "processors", "vocab"},
    "custom": {"choose", "decode", "generate", "model", "processors"},
    "standin": {"quantised"},
}
MODEL_SIDE = {
    *("kernels", "engine", "blocks", "static", "drafting"),
    *("choose", "model", "cache", "attention", "support", "standin", "generate", "drafter"),
    *("custom", "processors", "plainly", "quantised", "shift", "noise", "audit"),
}


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


def ours(path: Path) -> set[str]:
    """The modules of ouroboros that a file imports, by their first name below the package."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("ouroboros.")}
    known = {p.stem for p in (ROOT / "ouroboros").iterdir()}
    return names & known


@pytest.mark.parametrize("module", LAYERS)
def test_a_module_imports_only_the_layers_below(module):
    assert ours(ROOT / "ouroboros" / f"{module}.py") <= LAYERS[module]


def test_the_layers_have_no_cycle():
    order = list(LAYERS)
    for module, below in LAYERS.items():
        assert all(order.index(name) < order.index(module) for name in below)


def test_every_module_of_the_engine_has_a_layer():
    modules = {path.stem for path in (ROOT / "ouroboros").glob("*.py")}
    assert modules - set(LAYERS) == {"__init__"}


@pytest.mark.parametrize("module", [name for name in LAYERS if name not in MODEL_SIDE])
def test_only_the_model_side_knows_torch(module):
    tops = {name.split(".")[0] for name in imports(ROOT / "ouroboros" / f"{module}.py")}
    assert not tops & {"torch", "transformers"}


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_the_method_never_imports_what_it_is_measured_against():
    for path in python_files("ouroboros"):
        assert not {name for name in imports(path) if name.split(".")[0] == "baselines"}, path


def test_only_scripts_see_hydra():
    for path in [*python_files("ouroboros"), *python_files("baselines")]:
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"hydra", "omegaconf"}, path


def test_the_engine_never_imports_the_bench():
    for path in [*(ROOT / "ouroboros").glob("*.py"), *python_files("baselines")]:
        assert "bench" not in ours(path), path
