"""Which jobs of a sweep may be timed: those that have their device to themselves.

A launcher that runs jobs side by side on one device makes every job slower by an unknown amount, so
such jobs count calls and tokens but measure no time (`timing=false`). Invariant: a launcher that is
not known here is taken to share the device.
"""

from __future__ import annotations

from collections.abc import Mapping


def check_timing(launcher: Mapping, *, timing: bool, device: str | None, job: int) -> None:
    """Raise `ValueError` for a timing run under a launcher whose jobs share a device.

    `launcher` is Hydra's `hydra.launcher`, `device` the config's model.device (None: chosen by the
    run), `job` the job's number in its sweep.
    """
    if not timing or alone(launcher, device=device, job=job):
        return
    name = _name(launcher)
    raise ValueError(
        f"hydra's {name} runs jobs side by side on one device, so their times would mean nothing: "
        "give timing=false (counts only), a device for each job, or no parallel launcher"
    )


def alone(launcher: Mapping, *, device: str | None = None, job: int = 0) -> bool:
    """Return whether a job has its device to itself.

    Slurm's and Ray's GPUs are allotted to one job at a time; Slurm's nodes if asked for as
    exclusive. A device numbered as the job is no other job's.
    """
    name = _name(launcher)
    if name == "BasicLauncher" or device == f"cuda:{job}":
        return True
    if name == "JoblibLauncher":
        return launcher.get("n_jobs") == 1
    if name == "SlurmLauncher":
        extra = launcher.get("additional_parameters") or {}
        return bool(launcher.get("gpus_per_node") or launcher.get("gres") or extra.get("exclusive"))
    if name == "RayLauncher":
        ray = launcher.get("ray") or {}
        if ((ray.get("remote") or {}).get("num_gpus") or 0) >= 1:
            return True
        return (ray.get("init") or {}).get("num_cpus") == 1
    return False


def _name(launcher: Mapping) -> str:
    return str(launcher.get("_target_", "")).rpartition(".")[2]
