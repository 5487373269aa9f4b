"""When a run that lies in a results folder may be gone on with.

Invariant: samples of two different configs, prompt sets or environments never meet in one folder,
and a finished run is never written over unless the caller says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CHANGES = 6  # differences that an error names
REMEDY = "use another results_dir, or overwrite=true"


@dataclass(frozen=True)
class RunIdentity:
    """What is to be run into a folder.

    `identity` is a hash of everything that the samples depend on, `known` what it is made of (see
    `record.known`), `environment` what they are measured with (see `provenance.environment`).
    `overwrite`: in place of whatever lies there; `retry_failed`: a finished run too, if some of its
    samples failed.
    """

    identity: str
    known: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    overwrite: bool = False
    retry_failed: bool = False

    def check(self, old: Mapping, path: Path, *, failed: bool) -> None:
        """Raise `ValueError` where the run of run.json `old` at `path`, of which some samples
        `failed` or none, is not the one that is claimed, or is through."""
        if old.get("identity") != self.identity:
            what = changes(_parts(old), _parts(self.known)) if self.known else ""
            what = f" ({what})" if what else ""
            raise ValueError(
                f"{path} holds a run with other settings, sources or prompts{what}: {REMEDY}"
            )
        if old.get("status") == "finished" and not self.retry_failed:
            raise ValueError(f"{path} holds this very run, finished: {REMEDY}")
        if old.get("status") == "finished" and not failed:
            raise ValueError(f"{path}: no sample failed, so none is to retry; {REMEDY}")
        what = changes(old.get("environment", {}), self.environment)
        if what:
            raise ValueError(
                f"{path} was measured under another environment ({what}): "
                f"go on under that one, {REMEDY}"
            )


def check_same(old: Mapping, facts: Mapping, path: Path) -> None:
    """Raise `ValueError` where a run's facts have another task, other models or another length than
    the run.json `old` at `path`: only a loaded task and loaded models tell them."""
    what = changes(_settled(old), _settled(facts))
    if what:
        raise ValueError(
            f"{path} holds a run with other prompts, models or length ({what}): {REMEDY}"
        )


def changes(old: Mapping, new: Mapping) -> str:
    """Return which values differ, as text for an error, the first few of them."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    told = [f"{name} was {old.get(name)}, is {new.get(name)}" for name in names[:CHANGES]]
    more = [f"and {len(names) - CHANGES} more"] if len(names) > CHANGES else []
    return ", ".join(told + more)


def _settled(facts: Mapping) -> dict:
    parts = {name: facts.get(name, {}) for name in ("task", "model")}
    own = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}
    return {**own, "max_new": facts.get("max_new")}


def _parts(run: Mapping) -> dict[str, object]:
    """Return what a run's identity is made of, each setting by its dotted name."""
    flat: dict[str, object] = {"prompts": run.get("task", {}).get("fingerprint")}
    below = list(run.get("config", {}).items())
    for name, value in below:  # grows while it is read
        if isinstance(value, Mapping) and value:
            below += [(f"{name}.{key}", item) for key, item in value.items()]
        else:
            flat[name] = value
    behind = run.get("contents", {}).items()
    return {**flat, **{k if k.startswith("source") else f"content of {k}": v for k, v in behind}}
