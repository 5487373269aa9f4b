"""Which jobs of a sweep may be timed."""

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from ouroboros.bench.run.config import RunConfig
from ouroboros.cli import bench
from ouroboros.cli.common import composed

JOBLIB = {"_target_": "x.JoblibLauncher", "n_jobs": -1}
BASIC = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}


def configured(monkeypatch, launcher: dict, *overrides: str, job: int = 0) -> RunConfig:
    """The config of a job of a sweep."""
    facts = {"mode": RunMode.MULTIRUN, "launcher": launcher, "job": {"num": job}}
    monkeypatch.setattr(bench.HydraConfig, "get", lambda: OmegaConf.create(facts))
    return bench.run_config(composed(["decoder=greedy", "results_dir=x", *overrides]))[0]


def test_only_jobs_with_a_device_each_are_timed_side_by_side(monkeypatch):
    assert configured(monkeypatch, BASIC).timing
    assert configured(monkeypatch, JOBLIB, "timing=false").results_dir == "x/000"
    assert configured(monkeypatch, JOBLIB, "model.device=cuda:3", job=3).results_dir == "x/003"
    for shared in ([], ["model.device=cuda:0"]):
        with pytest.raises(ValueError, match=r"side by side on one device.*timing=false"):
            configured(monkeypatch, JOBLIB, *shared, job=3)
