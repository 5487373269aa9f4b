"""Which jobs of a sweep may be timed, and that the launchers' configs compose."""

from types import SimpleNamespace

import pytest
from composing import CONF, composed
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins
from hydra.types import RunMode

from ouroboros.cli import bench

JOBLIB, LOCAL = {"_target_": "x.JoblibLauncher", "n_jobs": -1}, {"_target_": "x.LocalLauncher"}
SLURM, RAY = {"_target_": "x.SlurmLauncher"}, {"_target_": "x.RayLauncher", "ray": {}}


BASIC = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
ALONE = [
    BASIC,
    {**JOBLIB, "n_jobs": 1},
    {**SLURM, "gpus_per_node": 1},
    {**SLURM, "additional_parameters": {"exclusive": True}},
    {**RAY, "ray": {"remote": {"num_gpus": 1}}},
    {**RAY, "ray": {"init": {"num_cpus": 1}}},
]
SHARED = [JOBLIB, LOCAL, SLURM, RAY, {**RAY, "ray": {"remote": {"num_gpus": 0.5}}}]


@pytest.mark.parametrize(
    ("launcher", "lonely"),
    [*((one, True) for one in ALONE), *((one, False) for one in [*SHARED, {"_target_": "a.B"}])],
)
def test_jobs_that_share_a_device_are_not_timed(monkeypatch, launcher, lonely):
    assert bench.alone(launcher) is lonely
    job = SimpleNamespace(num=0)
    facts = SimpleNamespace(mode=RunMode.MULTIRUN, launcher=launcher, job=job)
    monkeypatch.setattr(bench.HydraConfig, "get", lambda: facts)
    options = {**composed("decoder=greedy"), "results_dir": "x"}
    assert bench.run_config({**options, "timing": False})[0].results_dir == "x/000"
    if lonely:
        return
    with pytest.raises(ValueError, match=r"side by side on one device.*timing=false"):
        bench.run_config(options)


def test_a_device_for_each_job():
    assert bench.alone(JOBLIB, device="cuda:3", job=3)
    assert not bench.alone(JOBLIB, device="cuda:0", job=3)


LAUNCHERS = ["joblib", "submitit_local", "ray", "slurm"]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_composes_where_its_package_is_installed(name):
    plugins = {plugin.__name__ for plugin in Plugins.instance().discover()}
    needed = {"joblib": "JoblibLauncher", "ray": "RayLauncher"}.get(name, "SlurmLauncher")
    if needed not in plugins:
        pytest.skip(f"{needed} is not installed")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"hydra/launcher={name}"], return_hydra_config=True)
    assert bench.alone(config.hydra.launcher) is (name == "slurm")
