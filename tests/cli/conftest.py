"""A tiny pair on disk, and commands called on it in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from bench_models import save_pair, tiny_pair
from hydra.core.global_hydra import GlobalHydra

from ouroboros.cli.main import main


@pytest.fixture(scope="module")
def saved_pair(tmp_path_factory) -> Path:
    """A folder with a tiny target and a tiny draft."""
    return save_pair(tiny_pair(), tmp_path_factory.mktemp("pair"))


@pytest.fixture(autouse=True)
def short_probes(monkeypatch):
    """A probe of tiny models is always noisy; tests/costs has its repetitions."""
    monkeypatch.setattr("ouroboros.costs.costs.PROBES", 1)
    monkeypatch.setattr("ouroboros.costs.costs.PROBE_VISITS", 1)


@pytest.fixture
def call(saved_pair, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Call a command on the pair, in its folder (or on none, here); return exit code, stdout and
    stderr. The prompt of `generate` comes first. `bench` draws its plot only with `plot`."""
    own = ["model=hf", *(f"model.{role}={saved_pair / role}" for role in ("target", "draft"))]

    def run(name: str, *rest: str, pair: bool = True, plot: bool = False) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ouroboros"])
        if pair:
            monkeypatch.chdir(saved_pair)
        GlobalHydra.instance().clear()
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if name == "bench" and not plot:
                patch.setattr(
                    import_module("ouroboros.bench.report.plots"), "bars", lambda *_, **__: None
                )
            try:
                words = rest[: name == "generate"]
                code = main([name, *words, *(own if pair else ()), *rest[len(words) :]]) or 0
            except SystemExit as ended:
                code = ended.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def run_bench(call):
    return lambda *overrides, **how: call("bench", *overrides, **how)


@pytest.fixture
def document(call) -> Callable[..., dict]:
    """Call a command that must succeed; return its JSON document."""

    def run(*arguments: str, **how) -> dict:
        code, out, err = call(*arguments, **how)
        assert code == 0, err
        return json.loads(out.splitlines()[-1])

    return run
