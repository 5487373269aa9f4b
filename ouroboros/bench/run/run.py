"""One run from its config to its results folder: load, measure, score; and what run.json records.

    config = RunConfig(model=PairSpec(...), task=TaskSpec("humaneval"), decoder={"greedy": {...}})
    result = run(config, progress=True)
    result.folder.load_samples()

A run that was interrupted resumes when it is called again with the same `results_dir`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

import torch
from tqdm import tqdm

from ouroboros import vocab
from ouroboros.bench.metrics.metrics import corpus_scores
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.run.audit import audit_run
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import COSTS, RUN, ResultsFolder, load_costs
from ouroboros.bench.run.identity import check_files, describe, machine, without_paths
from ouroboros.bench.run.loop import Bench, eos_ids
from ouroboros.bench.run.pair import Pair, load_pair
from ouroboros.bench.run.parallel import (
    draft_on_first,
    folder_of,
    join_ranks,
    on_own_device,
    parallel_facts,
    shared_pair,
)
from ouroboros.bench.run.prompts import longest, with_context
from ouroboros.bench.tasks.sandbox import check_sandbox, kind
from ouroboros.bench.tasks.task import Example, Task, fingerprint, part_of
from ouroboros.costs import NOISY, UNTIMED, Costs
from ouroboros.decoder_factory import decoder_factories, wants_costs
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import RankLost, Ranks, all_succeed, own_gpu
from ouroboros.engine.parallel.sharded import ShardedModel
from ouroboros.engine.quantised import quantised_by

BUSY = 20  # percent of the CPUs or of a GPU
INTERRUPTED = "interrupted: finished samples are kept; rerun with the same results_dir to resume"
STOPPING = b"\nstopping after this sample; press Ctrl-C again to stop at once\n"
Say = Callable[[str], object]


@dataclass(frozen=True)
class RunResult:
    """A run's folder and its loaded models and decoders.

    `finished` is False if the run was interrupted. In a parallel run, only the process with `first`
    set scores samples and owns the folder.
    """

    folder: ResultsFolder
    bench: Bench
    finished: bool
    first: bool = True


def run(
    config: RunConfig,
    *,
    say: Say = lambda line: None,
    progress: bool = False,
    measure_costs: Callable[[Pair], Costs] | None = None,
    probe: Path | None = None,
) -> RunResult:
    """Start or resume a run; measure, score and audit its samples; return the result.

    `say` gets each message; `progress` shows bars on stderr. The first Ctrl-C (or SIGTERM) ends the
    run after the current sample, the second at once. `measure_costs` measures call costs if the
    folder has none yet; if it is None, costs are measured only if a decoder needs them. `probe` is
    a file of costs that several runs share, written by the first that measures them. Raises
    `ValueError` if the run cannot start or resume.
    """
    costs = load_costs(config.costs)
    if costs is None and config.timing and probe and probe.exists():
        costs = Costs.load(probe)
    if config.threads:
        torch.set_num_threads(config.threads)
    with ExitStack() as stack:
        ranks = stack.enter_context(join_ranks(config.parallel))
        first = ranks.rank == 0
        task, examples = config.task.load()
        if getattr(task, "execute_code", False):
            check_sandbox(task.timeout_s, task.memory_mib)  # type: ignore[attr-defined]
        name = f"{task.name}-{config.model.name}-{datetime.now():%Y%m%d-%H%M%S}"
        folder = ResultsFolder(config.results_dir or Path("results", "local", name))
        facts = describe(config, examples)
        choice = {"overwrite": config.overwrite, "retry_failed": config.retry_failed}

        def claim() -> None:
            if first:
                stack.enter_context(folder.locked())
                folder.check_open(facts, **choice)

        all_succeed(ranks, claim)
        recorded = None if config.overwrite or not first else folder.load_costs()
        spec = on_own_device(config.model, ranks)
        pair = all_succeed(ranks, lambda: load_pair(spec, with_draft=config.needs_draft))
        if measure_costs is not None and recorded is None:
            costs = measure_costs(pair)
        shared = ranks if config.parallel else None
        bench = build(config, task, examples, pair, costs=recorded or costs, ranks=shared)
        facts |= run_facts(config, bench)
        record = all_succeed(ranks, lambda: folder.open_run(facts, **choice) if first else {})
        if first and bench.costs is not None and recorded is None:
            folder.write_json(COSTS, asdict(bench.costs))
            if probe and "spread" in bench.costs.about:
                bench.costs.save(probe)
        if first and Path(config.model.target or "").is_absolute():  # run.json omits the path
            folder.write_tokenizer(pair.target.tokenizer)
        for line in caveats(config, bench, facts["load"]):
            say(line)
        say(f"models: {config.model.name}, {facts['model']['dtype']} on {facts['model']['device']}")
        say(f"results: {short_path(folder.path)}")

        asked = stack.enter_context(stop_requests(b"" if ranks.rank else STOPPING))
        all_asked = lambda: b"1" in ranks.all_gather(b"1" if asked() else b"0")  # noqa: E731
        bar, finished = ticking("", bench.total, progress, all_asked), False
        try:
            with folder_of(folder, ranks) as own, bar as tick:
                bench.run(own, tick, retry_failed=config.retry_failed)
            if first:
                with ticking("scoring", None, progress, asked) as tick:
                    bench.score(folder, tick)
            finished = True
        except KeyboardInterrupt:
            say(INTERRUPTED)
        except RankLost:
            if not asked():  # else this rank was interrupted earlier
                if first:
                    folder.save_run(record, status="interrupted")
                raise
        if not first:
            return RunResult(folder, bench, finished, first=False)
        record["parallel"] = parallel_facts(bench.models)
        models = [one.alone() if isinstance(one, ShardedModel) else one for one in bench.models]
        bench = replace(bench, target=models[0], models=models)
        if finished and not config.save_pools:
            folder.drop_pools()
        record["corpus_scores"] = corpus_scores(task, bench.examples, folder.load_samples())
        folder.save_run(record, status="finished" if finished else "interrupted")
        if finished and config.audit != "none":
            prompts = len(bench.examples) * bench.repeats
            try:
                with ticking("audit", prompts, progress, asked) as tick:
                    audit_run(bench, folder, controls=config.audit == "all", on_row=tick)
            except (KeyboardInterrupt, Exception) as error:
                stopped = isinstance(error, KeyboardInterrupt)
                reason = "interrupted" if stopped else str(error).strip() or type(error).__name__
                say(f"no audit: {reason.splitlines()[0]}; 'ouroboros audit' repeats it")
        return RunResult(folder, bench, finished)


@contextmanager
def ticking(
    what: str, total: int | None, progress: bool, asked: Callable[[], bool]
) -> Iterator[Callable]:
    """Show a progress bar; yield a function to call after each unit of work, with its sample if
    any. It raises `KeyboardInterrupt` once `asked()` is true."""
    failed, unit = 0, "prompt" if what == "audit" else "sample"
    later = {"desc": what, "leave": False, "delay": 2} if what else {"mininterval": 0.5}
    with tqdm(total=total, unit=unit, dynamic_ncols=True, disable=not progress, **later) as bar:

        def tick(sample: Sample | None = None) -> None:
            nonlocal failed
            if sample:
                failed += sample.error is not None
                named = sample.decoder + (f", {failed} failed" if failed else "")
                bar.set_postfix_str(named, refresh=False)
            bar.update()
            if asked():
                raise KeyboardInterrupt

        yield tick


@contextmanager
def stop_requests(notice: bytes) -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C and SIGTERM in two stages: the first writes a notice to stderr, the second
    raises `KeyboardInterrupt`. Yield a function that tells whether a signal came.

    Outside the main thread no handlers are set.
    """
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        os.write(2, notice)  # not print(): the handler may interrupt one

    main = threading.current_thread() is threading.main_thread()
    handled = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def build(
    config: RunConfig,
    task: Task,
    examples: Sequence[Example],
    pair: Pair,
    *,
    costs: Costs | None = None,
    ranks: Ranks | None = None,
) -> Bench:
    """Return the run's loop over its shard of the examples, padded to `context_tokens`.

    Without `costs`, they are measured if a decoder needs them; an untimed run takes the default.
    `ranks` are those of a parallel run, which share the models.
    """
    tokenizer = pair.target.tokenizer
    examples = part_of(examples, config.part)
    if config.context_tokens:
        examples = with_context(examples, task.load(), tokenizer, config.context_tokens)
    max_new = task.max_new if config.max_new is None else config.max_new
    if costs is None and (ranks is not None or any(map(wants_costs, config.decoder.values()))):
        reach = longest(tokenizer, examples) + max_new
        costs = measured_or_named(pair, context=reach, timing=config.timing)
    # GPUs that autotuned their kernels separately would draft differently.
    drafting = config.parallel_draft or (None if own_gpu() is None else "first")
    if ranks is not None:
        costs = ranks.broadcast(costs)
        assert costs is not None
        pair = shared_pair(pair, costs, ranks, drafting)
    decoders = decoder_factories(
        *(config.decoder, pair.draft, costs),
        tokenizer=tokenizer,
        guard=config.timing and ranks is None,
    )
    if ranks is not None and drafting == "first":
        decoders = {name: draft_on_first(make, ranks) for name, make in decoders.items()}
    return Bench(
        *(pair.target, pair.models, task, examples, decoders, max_new, config.repeats),
        *(config.sampling, config.record_predictions, config.record_trees, costs),
        batch_size=config.batch_size,
        refill=config.refill,
    )


def measured_or_named(pair: Pair, *, context: int, timing: bool) -> Costs:
    """Return costs of calls with up to `context` tokens: measured, or the default if untimed."""
    if not timing:
        return Costs.load(UNTIMED)
    return Costs.measure(pair.target, pair.draft, context=context)


def rebuild(folder: ResultsFolder, overrides: Mapping[str, object] | None = None) -> Bench:
    """Reload the task, models and decoders of a folder's run.

    `overrides` replace config values by dotted name, such as paths, which run.json shortens to
    their last part. Raises `ValueError` if files, prompts or options differ from the run's.
    """
    run = folder.load_run()
    if lacking := {"config", "task", "model", "sampling", "max_new"} - run.keys():
        raise ValueError(f"{folder.path / RUN} lacks {', '.join(sorted(lacking))}: it is damaged")
    config = RunConfig.from_mapping({**run["config"], "part": run.get("part")})
    config = config.replaced(overrides or {})
    check_files(config.files(), run.get("contents", {}))
    task, examples = config.task.load()
    pair = load_pair(config.model, with_draft=config.needs_draft)
    costs = folder.load_costs() or load_costs(config.costs)
    bench = build(config, task, examples, pair, costs=costs)
    for what, old, new in (
        ("prompts", run["task"].get("fingerprint"), fingerprint(bench.examples)),
        ("dtype", run["model"]["dtype"], str(bench.target.dtype).removeprefix("torch.")),
        ("sampling", run["sampling"], asdict(bench.sampling)),
        ("max_new", run["max_new"], bench.max_new),
    ):
        if old is not None and old != new:
            raise ValueError(f"the run had other {what} ({old}, now {new}): replace paths only")
    return bench


def short_path(path: Path) -> str:
    """Return a path relative to the current folder, or absolute if it is outside of it.

    >>> short_path(Path("results/main")), short_path(Path("/nowhere/run"))
    ('results/main', '/nowhere/run')
    """
    near = os.path.relpath(path)
    return os.path.abspath(path) if near.split(os.sep)[0] == os.pardir else near


def caveats(config: RunConfig, bench: Bench, load: Mapping[str, float]) -> Iterator[str]:
    """Yield one warning for each reason to doubt the run's figures."""
    if config.timing and (busy := max(load.values())) > BUSY:
        yield f"other work keeps this machine {busy:.0f} % busy: times are longer and less certain"
    about = bench.costs.about if bench.costs else {}
    if isinstance(spread := about.get("spread"), float) and spread > NOISY:
        yield (
            f"the probe of call costs varies by {spread:.0%}, by which decoders draft: repeat the "
            "run on a quiet machine, or give costs=<file or name>"
        )
    if PLAIN not in bench.decoders:
        yield f"without {PLAIN} in decoder=[...] there is no speedup and no losslessness verdict"
    float32_on_cpu = bench.target.device.type == "cpu" and bench.target.dtype == torch.float32
    plain = 1 not in bench.target.packed.facts.get("used", ())
    if config.timing and float32_on_cpu and plain and "AMD" in str(machine()["cpu"]):
        yield (  # MKL handles so few rows one by one there
            "float32 on an AMD processor without prepacked weights: calls of one to three nodes "
            "take longer than they need, which flatters speedups over greedy; use bfloat16"
        )


def run_facts(config: RunConfig, bench: Bench) -> dict:
    """Return what run.json records about the loaded task, models and decoders.

    `part` is this run's shard of the prompts. With `timing` false, other jobs shared the device and
    times mean nothing.
    """
    target, spec, task = bench.target, config.model, bench.task
    roles = dict(zip(("target", "draft"), bench.models, strict=False))
    quantised = {role: quantised_by(model.model) for role, model in roles.items()}
    configs = [getattr(model.model, "config", None) for model in bench.models]
    facts = {
        "task": {
            **{name: getattr(task, name) for name in ("name", "version", "licence")},
            "prompts": len(bench.examples),
            "fingerprint": fingerprint(bench.examples),
            "stop": list(task.stop),
        },
        "model": {
            **{key: getattr(spec, key) for key in ("name", "target", "draft", "standin")},
            "commits": [getattr(one, "_commit_hash", None) for one in configs],
            "dtype": str(target.dtype).removeprefix("torch."),
            "quantised": {role: by for role, by in quantised.items() if by} or None,
            "draft_cost": draft_cost(spec.draft_cost, bench.models, bench.costs),
            "engines": {role: model.describe_engine() for role, model in roles.items()},
            "device": str(target.device),
            "max_len": target.max_len,
            "vocab_size": target.vocab_size,
            "tokenizer": vocab.fingerprint(target.tokenizer),
            "eos": sorted(eos_ids(target)),
        },
        "packed": {role: model.packed.facts for role, model in roles.items()},
        "sandbox": kind() if getattr(task, "execute_code", False) else None,
        "decoders": list(bench.decoders),
        "carried_pools": config.carried_pools,
        "sampling": asdict(bench.sampling),
        "max_new": bench.max_new,
        **{name: getattr(config, name) for name in ("repeats", "part", "timing", "published")},
        "samples_wanted": bench.total,
    }
    return without_paths(facts)


def draft_cost(
    configured: float | None, models: Sequence[CachedModel], costs: Costs | None = None
) -> float | None:
    """Return the cost of a draft call in target calls: as configured, else from the costs, else
    from the size of the weights; None without a draft."""
    if configured is not None or len(models) < 2:
        return configured
    if costs is not None and costs.draft is not None:
        return costs.draft_ratio()
    target, draft = (sum(w.nbytes for w in model.model.parameters()) for model in models[:2])
    return draft / target
