"""Which jobs of a sweep may be timed; the launchers' configs compose."""

import pytest
from composing import CONF, composed
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf

from ouroboros.bench.run.config import RunConfig
from ouroboros.cli import bench

JOBLIB, LOCAL = {"_target_": "x.JoblibLauncher", "n_jobs": -1}, {"_target_": "x.LocalLauncher"}
SLURM, RAY = {"_target_": "x.SlurmLauncher"}, {"_target_": "x.RayLauncher", "ray": {}}
BASIC = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
ALONE = [
    BASIC,
    {**SLURM, "gpus_per_node": 1},
    {**SLURM, "additional_parameters": {"exclusive": True}},
    {**RAY, "ray": {"remote": {"num_gpus": 1}}},
]
SHARED = [JOBLIB, LOCAL, SLURM, RAY, {**RAY, "ray": {"remote": {"num_gpus": 0.5}}}]
SHARED += [{"_target_": "a.B"}]


def configured(monkeypatch, launcher: dict, *overrides: str, job: int = 0) -> RunConfig:
    """The config of a job of a sweep."""
    facts = {"mode": RunMode.MULTIRUN, "launcher": launcher, "job": {"num": job}}
    monkeypatch.setattr(bench.HydraConfig, "get", lambda: OmegaConf.create(facts))
    return bench.run_config({**composed("decoder=greedy", *overrides), "results_dir": "x"})[0]


@pytest.mark.parametrize(
    ("launcher", "alone"), [*((one, True) for one in ALONE), *((one, False) for one in SHARED)]
)
def test_jobs_that_share_a_device_are_not_timed(monkeypatch, launcher, alone):
    assert configured(monkeypatch, launcher, "timing=false").results_dir == "x/000"
    if alone:
        assert configured(monkeypatch, launcher).timing
        return
    with pytest.raises(ValueError, match=r"side by side on one device.*timing=false"):
        configured(monkeypatch, launcher)


def test_a_device_for_each_job(monkeypatch):
    assert configured(monkeypatch, JOBLIB, "model.device=cuda:3", job=3).results_dir == "x/003"
    with pytest.raises(ValueError, match="side by side on one device"):
        configured(monkeypatch, JOBLIB, "model.device=cuda:0", job=3)


LAUNCHERS = ["joblib", "submitit_local", "ray", "slurm"]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_composes_where_its_package_is_installed(monkeypatch, name):
    plugins = {plugin.__name__ for plugin in Plugins.instance().discover()}
    needed = {"joblib": "JoblibLauncher", "ray": "RayLauncher"}.get(name, "SlurmLauncher")
    if needed not in plugins:
        pytest.skip(f"{needed} is not installed")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"hydra/launcher={name}"], return_hydra_config=True)
    launcher = OmegaConf.to_container(config.hydra.launcher)
    if name == "slurm":
        assert configured(monkeypatch, launcher).timing
        return
    with pytest.raises(ValueError, match="side by side on one device"):
        configured(monkeypatch, launcher)
