"""Which jobs of a sweep may be timed, and that the launchers' configs compose."""

import pytest
from composing import CONF
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins

from ouroboros.cli.bench import alone, check_timing

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
def test_jobs_that_share_a_device_are_not_timed(launcher, lonely):
    assert alone(launcher) is lonely
    check_timing(launcher, timing=False, device=None, job=0)
    if not lonely:
        with pytest.raises(ValueError, match=r"side by side on one device.*timing=false"):
            check_timing(launcher, timing=True, device=None, job=0)


def test_a_device_for_each_job():
    assert alone(JOBLIB, device="cuda:3", job=3)
    assert not alone(JOBLIB, device="cuda:0", job=3)


LAUNCHERS = ["joblib", "submitit_local", "ray", "slurm"]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_composes_where_its_package_is_installed(name):
    plugins = {plugin.__name__ for plugin in Plugins.instance().discover()}
    needed = {"joblib": "JoblibLauncher", "ray": "RayLauncher"}.get(name, "SlurmLauncher")
    if needed not in plugins:
        pytest.skip(f"{needed} is not installed")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"hydra/launcher={name}"], return_hydra_config=True)
    assert alone(config.hydra.launcher) is (name == "slurm")
