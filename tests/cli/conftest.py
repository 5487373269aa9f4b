"""A tiny pair on disk, and commands called on it in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_models import tiny_pair
from hydra.core.global_hydra import GlobalHydra

from ouroboros.cli.main import main


@pytest.fixture(scope="module")
def saved_pair(tmp_path_factory) -> Path:
    """A folder with a tiny target and a tiny draft."""
    folder = tmp_path_factory.mktemp("pair")
    for name, model in zip(("target", "draft"), tiny_pair(), strict=True):
        model.model.save_pretrained(folder / name)
        model.tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def short_probes(monkeypatch):
    """A probe of tiny models is always noisy; tests/costs has its repetitions."""
    monkeypatch.setattr("ouroboros.costs.costs.PROBES", 1)
    monkeypatch.setattr("ouroboros.costs.costs.PROBE_VISITS", 1)


@pytest.fixture
def call(saved_pair, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Call a command on the pair, in its folder (or on none, here); return exit code, stdout and
    stderr."""
    own = ["model=hf", *(f"model.{role}={saved_pair / role}" for role in ("target", "draft"))]

    def run(name: str, *overrides: str, pair: bool = True) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ouroboros"])
        if pair:
            monkeypatch.chdir(saved_pair)
        GlobalHydra.instance().clear()
        capsys.readouterr()
        try:
            code = main([name, *(own if pair else ()), *overrides]) or 0
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def run_bench(call):
    return lambda *overrides: call("bench", *overrides)
