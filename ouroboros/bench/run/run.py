"""Run a benchmark, from its config to its results folder: load, measure, score, audit.

    config = RunConfig(model=PairSpec(...), task=TaskSpec("humaneval"), decoder={"greedy": {...}})
    result = run(config, progress=True)
    result.folder.load_samples()

A run that was interrupted resumes when it is called again with the same `results_dir`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.audit import audit_run
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import COSTS, ResultsFolder, load_costs
from ouroboros.bench.run.identity import check_found, describe, other_load, without_paths
from ouroboros.bench.run.loop import Bench, in_one_line
from ouroboros.bench.run.pair import Pair, load_pair, load_tokenizer, model_names
from ouroboros.bench.run.parallel import claimed, draft_on_first, join_ranks, on_own_device
from ouroboros.bench.run.prompts import PromptBuilder
from ouroboros.bench.tasks.dataset import AUTO
from ouroboros.bench.tasks.sandbox import check_sandbox
from ouroboros.bench.tasks.task import Example, Task, fingerprint
from ouroboros.costs import NOISY, UNTIMED, Costs
from ouroboros.decoder_factory import check_decoders, decoder_factories, wants_costs
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import RankLost, Ranks, all_succeed
from ouroboros.engine.parallel.sharded import ShardedModel
from ouroboros.engine.quantised import bytes_of, quantised_by
from ouroboros.models import vocab

Say = Callable[[str], object]


@dataclass(frozen=True)
class RunResult:
    """A run's folder, and `bench`, its loaded models and decoders. `finished` is False if the
    run or its audit was interrupted, `first` in every process but rank 0 of a parallel run."""

    folder: ResultsFolder
    bench: Bench
    finished: bool
    first: bool = True


def run(
    config: RunConfig,
    *,
    say: Say = lambda line: None,
    progress: bool = False,
    measure_costs: Callable[[Pair], Costs | None] = lambda pair: None,
    load: Callable[..., Pair] = load_pair,
) -> RunResult:
    """Start or resume a run; measure, score and audit its samples; return the result.

    `say` receives each message; `progress` shows bars on stderr. Ctrl-C ends the run and loses only
    the samples that are being decoded. Call costs come from the folder, else from `measure_costs`,
    else from the config, else they are measured if a decoder needs them. Raises `ValueError` if the
    run cannot start or resume.
    """
    with join_ranks(config.parallel) as ranks, ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.threads or torch.get_num_threads())
        if config.task.options.get("template") == AUTO:
            tokenizer = load_tokenizer(config.model)
            config = replace(config, task=config.task.for_tokenizer(tokenizer))
        task, examples = config.task.load()
        if getattr(task, "execute_code", False):
            check_sandbox(task.timeout_s, task.memory_mib)  # type: ignore[attr-defined]
        check_decoders(config.decoder)
        costs, facts = load_costs(config.costs), describe(config)
        if config.parallel and config.timing:
            facts["provenance"]["machine"]["processes"] = ranks.size
        name = f"{task.name}-{config.model.name}-{datetime.now():%Y%m%d-%H%M%S}"
        place = Path(config.results_dir or Path("results", "local", name))
        store = ResultsFolder(place, overwrite=config.overwrite)
        folder = stack.enter_context(claimed(store, facts, ranks))

        recorded = None if config.overwrite else folder.load_costs()
        how: dict = {"with_draft": config.needs_draft, "engines": folder.engines()}
        spec = on_own_device(config.model, ranks)
        pair = all_succeed(ranks, partial(load, spec, **how))
        costs = recorded or measure_costs(pair) or costs
        bench = build(config, task, examples, pair, costs=costs, ranks=ranks)
        facts |= run_facts(config, bench)
        # Only rank 0's folder has the run.json of a run to resume.
        record = all_succeed(ranks, lambda: facts if ranks.rank else folder.open_run(facts))
        if bench.costs is not None and recorded is None:
            folder.write_json(COSTS, asdict(bench.costs))
        if Path(config.model.target or "").is_dir():  # the folder may move
            folder.write_tokenizer(pair.target.tokenizer)
        spread = bench.costs.about.get("spread") if bench.costs else None
        if isinstance(spread, float) and spread > NOISY:
            noise = f"the measured call costs, which decoders plan with, vary by {spread:.0%}"
            say(f"{noise}: repeat the run on a quiet machine, or give costs=<file or name>")
        if PLAIN not in bench.decoders:
            say(f"without {PLAIN} in decoder=[...] there is no speedup and no losslessness verdict")
        names = model_names(facts["model"])
        say(f"models: {names}, {facts['model']['dtype']} on {facts['model']['device']}")
        say(f"results: {place}")

        finished = False
        try:
            # The other processes of a parallel run would count as other programs.
            with nullcontext() if config.parallel else other_load(record):
                bar: dict = {"total": bench.total, "dynamic_ncols": True, "disable": not progress}
                for _ in tqdm(bench.run(folder), **bar):
                    pass
            if not ranks.rank and (failure := bench.score(folder, record, progress=progress)):
                later = f"'ouroboros audit {place}' scores them"
                say(f"some completions have no score: {failure}; {later}")
            finished = True
        except KeyboardInterrupt:
            resume = f"rerun with results_dir={place} to resume"
            resume += ", without overwrite" * config.overwrite
            say(f"interrupted: finished samples are kept; {resume}")
        except RankLost:
            folder.save_run(record, status="interrupted")
            raise
        if ranks.rank:
            return RunResult(store, bench, finished, first=False)
        if isinstance(bench.target, ShardedModel):
            traffic = bench.target.exchanged_bytes / max(1, bench.target.exchanges)
            record["parallel"] = {"ranks": ranks.size, "bytes_per_step": round(traffic, 1)}
            target = bench.target.alone()
            bench = replace(bench, target=target, models=[target, *bench.models[1:]])
        folder.save_run(record, status="finished" if finished else "interrupted")

        if finished and config.audit != "none":
            try:
                audit_run(bench, folder, controls=config.audit == "all", progress=progress)
            except (KeyboardInterrupt, Exception) as error:
                say(f"no audit: {in_one_line(error)}; 'ouroboros audit' repeats it")
                finished = isinstance(error, Exception)  # Ctrl-C also ends a sweep
        return RunResult(folder, bench, finished)


def build(
    config: RunConfig,
    task: Task,
    examples: Sequence[Example],
    pair: Pair,
    *,
    costs: Costs | None = None,
    ranks: Ranks | None = None,
) -> Bench:
    """Return the run's loop over the examples.

    If `costs` is None, they are measured if a decoder or several ranks need them; an untimed run
    uses the costs `UNTIMED` instead. Several `ranks` share the target, and rank 0 drafts.
    """
    ranks, tokenizer = ranks or Ranks(), pair.target.tokenizer
    several = ranks.size > 1
    max_new = task.max_new if config.max_new is None else config.max_new
    prompts = PromptBuilder(tokenizer, getattr(task, "template_args", {}), share=ranks.broadcast)
    if costs is None and (several or any(map(wants_costs, config.decoder.values()))):
        costs = Costs.load(UNTIMED)
        if config.timing:
            reach = prompts.longest(examples) + max_new
            costs = Costs.measure(pair.target, pair.draft, context=reach)
    costs, how = ranks.broadcast(costs), {"adapt": config.timing and not several}
    if several and costs:
        pair = Pair(ShardedModel(pair.target, ranks, call_ms=costs.target.call_ms), pair.draft)
    decoders = decoder_factories(config.decoder, pair.draft, costs, tokenizer=tokenizer, **how)
    if several:
        decoders = {name: partial(draft_on_first, make, ranks) for name, make in decoders.items()}
    return Bench(
        *(pair.target, pair.models, task, examples, decoders, max_new),
        repeats=config.repeats,
        sampling=config.sampling,
        record_predictions=config.record_predictions,
        costs=costs,
        batch_size=config.batch_size,
        refill=config.refill,
        prompts=prompts,
    )


def rebuild(folder: ResultsFolder, overrides: Mapping[str, object] | None = None) -> Bench:
    """Reload the task, models and decoders of a folder's run. `overrides` replaces config values
    by dotted name; paths need it, because run.json keeps only their last part. Raises
    `ValueError` if files, prompts or options differ from the run's."""
    run = folder.load_run()
    config = RunConfig.from_mapping(run["config"]).replaced(overrides or {})
    check_found(config.files(), run)
    task, examples = config.task.load()
    pair = load_pair(config.model, with_draft=config.needs_draft, engines=folder.engines())
    costs = folder.load_costs() or load_costs(config.costs)
    bench = build(config, task, examples, pair, costs=costs)
    for what, old, new in (
        ("prompts", run["task"].get("fingerprint"), fingerprint(bench.examples)),
        ("dtype", run["model"]["dtype"], str(bench.target.dtype).removeprefix("torch.")),
        ("sampling", run["sampling"], asdict(bench.sampling)),
        ("max_new", run["max_new"], bench.max_new),
    ):
        if old is not None and old != new:
            name = ", and keep the file's name, which is part of ids" if what == "prompts" else ""
            raise ValueError(
                f"the run had other {what} ({old}, now {new}): replace paths only{name}"
            )
    return bench


def run_facts(config: RunConfig, bench: Bench) -> dict:
    """Return what run.json records about the loaded task, models and decoders, by key."""
    target, spec, task = bench.target, config.model, bench.task
    roles = dict(zip(("target", "draft"), bench.models, strict=False))
    quantised = {role: quantised_by(model.model) for role, model in roles.items()}
    configs = [getattr(model.model, "config", None) for model in bench.models]
    chat = any(example.messages for example in bench.examples)
    template = "chat" if chat else getattr(task, "template", "plain")
    facts = {
        "task": {
            **{name: getattr(task, name) for name in ("name", "version", "licence")},
            "prompts": len(bench.examples),
            "fingerprint": fingerprint(bench.examples),
            "stop": list(task.stop),
            "template": template,
            "template_args": dict(bench.prompts.args),
        },
        "model": {
            **{key: getattr(spec, key) for key in ("name", "target", "draft", "standin")},
            "commits": [getattr(one, "_commit_hash", None) for one in configs],
            "dtype": str(target.dtype).removeprefix("torch."),
            "quantised": {role: by for role, by in quantised.items() if by} or None,
            "draft_cost": draft_cost(bench.models, bench.costs),
            "engines": {role: model.describe_engine() for role, model in roles.items()},
            "device": str(target.device),
            "max_len": target.max_len,
            "vocab_size": target.vocab_size,
            "tokenizer": vocab.fingerprint(target.tokenizer),
            "eos": sorted(bench.eos),
        },
        "decoders": list(bench.decoders),
        "sampling": asdict(bench.sampling),
        "max_new": bench.max_new,
        "repeats": config.repeats,
        "timing": config.timing,
        "published": config.published,
        "samples_wanted": bench.total,
    }
    return without_paths(facts)


def draft_cost(models: Sequence[CachedModel], costs: Costs | None = None) -> float | None:
    """Return the cost of a draft call in target calls: from the costs, else from the bytes of the
    weights that a call reads; None without a draft."""
    if len(models) < 2:
        return None
    if costs is not None and costs.draft is not None:
        return costs.draft_ratio()
    target, draft = (bytes_of(model.model) for model in models[:2])
    return draft / target
