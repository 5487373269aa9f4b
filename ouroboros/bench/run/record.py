"""What run.json records about a run, and the hash of what its samples depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ouroboros import vocab
from ouroboros.bench.run.file_hash import contents
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pools import carriers
from ouroboros.bench.run.provenance import environment, identity, provenance, without_paths
from ouroboros.bench.run.resume import RunIdentity
from ouroboros.bench.run.sources import sources
from ouroboros.bench.run.turn import eos_ids
from ouroboros.bench.tasks.sandbox import kind
from ouroboros.bench.tasks.task import Example, Task, fingerprint
from ouroboros.costs.surface import Costs
from ouroboros.drafters.draft_tree.compiled import WHY_NOT
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import quantised_by
from ouroboros.engine.serving import serving

NOT_IDENTITY = (
    *("results_dir", "overwrite", "retry_failed", "save_pools", "audit", "published"),
    *("part", "record_trees"),
)


def claim_of(config: Mapping, examples: Sequence[Example]) -> RunIdentity:
    """Return what a config runs into its results folder."""
    return RunIdentity(
        run_identity(config, examples),
        known(config, examples),
        environment(),
        overwrite=config["overwrite"],
        retry_failed=config["retry_failed"],
    )


def run_identity(config: Mapping, examples: Sequence[Example]) -> str:
    """Return a hash of all that samples depend on: the prompts, the config but its outputs, and
    what lies behind the config's paths.

    What only the loaded task and models tell is in `run_facts`, and a resumed run must have it too
    (see `ResultsFolder.open_run`).
    """
    return identity(_settings(config), fingerprint(examples), behind(config))


def known(config: Mapping, examples: Sequence[Example]) -> dict:
    """Return what `run_identity` is made of, as run.json has it, to name what changed."""
    return without_paths(
        {
            "config": _settings(config),
            "contents": behind(config),
            "task": {"fingerprint": fingerprint(examples)},
        }
    )


def behind(config: Mapping) -> dict[str, str]:
    """Return hashes of the files and sources that a config names, by the option."""
    return {**contents(config), **sources(config)}


def run_facts(config: Mapping, job: Bench) -> dict:
    """Return what run.json records beside identity, environment and status.

    `part` is the share of the prompts that this run measures; parts have one identity, and a report
    joins them. `carried_pools` names the decoders whose phrase pool goes from prompt to prompt.
    `timing` false says that other jobs shared the device, so that seconds mean nothing.
    """
    model, target = config["model"], job.target
    return without_paths(
        {
            "task": {
                "name": job.task.name,
                "version": job.task.version,
                "licence": job.task.licence,
                "prompts": len(job.examples),
                "fingerprint": fingerprint(job.examples),
                "stop": list(job.task.stop),
            },
            "model": {
                **{key: model[key] for key in ("name", "target", "draft", "standin")},
                "commits": [_commit(model) for model in job.models],
                "dtype": str(target.dtype).removeprefix("torch."),
                "quantised": _quantised(job.models),
                "draft_cost": draft_cost(model.get("draft_cost"), job.models, job.costs),
                "engines": dict(zip(("target", "draft"), map(serving, job.models), strict=False)),
                "device": str(target.device),
                "max_len": target.max_len,
                "vocab_size": target.vocab_size,
                "tokenizer": vocab.fingerprint(target.tokenizer),
                "eos": sorted(eos_ids(target)),
            },
            "growth": WHY_NOT or "compiled",
            "sandbox": _sandbox(job.task),
            "decoders": list(job.decoders),
            "carried_pools": carriers(config["decoder"]),
            "sampling": asdict(job.sampling),
            "max_new": job.max_new,
            "repeats": job.repeats,
            "part": config.get("part"),
            "timing": config["timing"],
            "published": config.get("published"),
            "samples_wanted": job.total,
            "config": _settings(config),
            "contents": behind(config),
            "provenance": provenance(),
        }
    )


def draft_cost(
    configured: float | None, models: Sequence[CachedModel], costs: Costs | None = None
) -> float | None:
    """Return a draft call's cost in target calls: as configured, else by the costs (calls of one
    node, at the least context known), else the bytes of the draft's weights over the target's,
    which a call reads; None without a draft."""
    if configured is not None or len(models) < 2:
        return configured
    if costs is not None and costs.draft is not None:
        least = min(costs.target.ms)
        return costs.draft.call_ms(1, least) / costs.target.call_ms(1, least)
    target, draft = (sum(w.nbytes for w in one.model.parameters()) for one in models[:2])
    return draft / target


def _commit(model: CachedModel) -> str | None:
    """Return the commit of the hub that a model was loaded from, None for one from a folder."""
    return getattr(getattr(model.model, "config", None), "_commit_hash", None)


def _sandbox(task: Task) -> str | None:
    """Return in what a task's completions are executed, None where they are not."""
    execution = getattr(task, "execution", None)
    return kind() if execution is not None and execution.allowed else None


def _quantised(models: Sequence[CachedModel]) -> dict[str, str] | None:
    """Return by what target and draft are quantised, by role; None where neither is."""
    found = {
        role: quantised_by(model.model)
        for role, model in zip(("target", "draft"), models, strict=False)
    }
    return {role: what for role, what in found.items() if what} or None


def _settings(config: Mapping) -> dict:
    return {key: value for key, value in config.items() if key not in NOT_IDENTITY}
