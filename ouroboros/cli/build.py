"""From a resolved config to objects: the task, the pair of models, the decoders, the run.

Hydra's `instantiate` is used here only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hydra.errors import InstantiationException
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.costs import load_costs, recorded_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import check_files
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.bench.run.parallel import drafting_on_first, shared_pair
from ouroboros.bench.run.prompts import longest, with_context
from ouroboros.bench.run.run import run_facts
from ouroboros.bench.tasks.task import Example, Task, part_of, select
from ouroboros.cli.configs import called, plain
from ouroboros.costs import UNTIMED, Costs
from ouroboros.decoders import decoder_factories, needs_draft, wants_costs
from ouroboros.engine.parallel.ranks import Ranks, told
from ouroboros.instantiate import check_arguments, instantiate

SELECTION = ("limit", "stride", "shuffle")
SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def build_task(options: dict) -> tuple[Task, list[Example]]:
    """Return the task and the chosen examples."""
    own = {key: value for key, value in options.items() if key not in SELECTION}
    task = instantiate(own, "task")
    return task, select(task.load(), **{key: options[key] for key in SELECTION if key in options})


def build_spec(options: dict) -> PairSpec:
    """Return what to load."""
    check_arguments({"_target_": "ouroboros.bench.run.pair.PairSpec", **options}, "model")
    try:
        made = hydra_instantiate(options, _convert_="all")
    except InstantiationException as error:
        reason = " ".join(str(error).split(", set env var")[0].split())
        raise ValueError(f"model: {reason}: is its package installed? (pip install)") from error
    return called(partial(PairSpec, **made), "model")


def build_pair(config: dict) -> Pair:
    """Load the models that the decoders need."""
    return load_pair(
        build_spec(config["model"]), with_draft=any(map(needs_draft, config["decoder"].values()))
    )


def build_sampling(config: Mapping) -> Sampling:
    """Return how tokens are chosen."""
    return Sampling(**{name: config[name] for name in SAMPLING})


def build_bench(
    config: dict,
    task: Task,
    examples: list[Example],
    pair: Pair,
    *,
    recorded: Costs | None = None,
    ranks: Ranks | None = None,
) -> Bench:
    """Return what the run measures; with `context_tokens`, the examples have longer prompts.

    `recorded` are the costs that the run's decoders went by before, if it is taken up again.
    `ranks` are those of a parallel run, which share the models.
    """
    examples = part_of(examples, config.get("part"))
    examples = lengthened(config, task, examples, pair.target.tokenizer)
    max_new = task.max_new if config["max_new"] is None else config["max_new"]
    reach = longest(pair.target.tokenizer, examples) + max_new
    costs = recorded or build_costs(config, pair, reach, wanted=ranks is not None)
    if ranks is not None:
        costs = told(ranks, costs)
        pair = shared_pair(pair, costs, ranks, config["parallel_draft"])
    decoders = decoder_factories(
        config["decoder"], pair.draft, costs, tokenizer=pair.target.tokenizer
    )
    if ranks is not None and config["parallel_draft"] == "first":
        decoders = drafting_on_first(decoders, ranks)
    return Bench(
        target=pair.target,
        models=pair.models,
        task=task,
        examples=examples,
        decoders=decoders,
        max_new=max_new,
        repeats=config["repeats"],
        sampling=build_sampling(config),
        record_predictions=config["record_predictions"],
        record_trees=config.get("record_trees"),
        costs=costs,
    )


def rebuild(folder: ResultsFolder, overrides: list[str]) -> Bench:
    """Return the job of a folder's run, with some values of its config replaced, such as paths.

    Raises `ValueError` where it would not be the same job.
    """
    run = folder.load_run()
    given = OmegaConf.from_dotlist(overrides)
    config = plain(OmegaConf.merge(OmegaConf.create(run["config"]), given))  # type: ignore[arg-type]
    config["part"] = run.get("part")
    check_files(config, run.get("contents", {}))
    task, examples = build_task(config["task"])
    recorded = recorded_costs(folder)
    job = build_bench(config, task, examples, build_pair(config), recorded=recorded)
    facts = run_facts(config, job)
    for what, old, new in (
        ("prompts", run["task"].get("fingerprint"), facts["task"]["fingerprint"]),
        ("dtype", run["model"]["dtype"], facts["model"]["dtype"]),
        ("sampling", run["sampling"], facts["sampling"]),
        ("max_new", run["max_new"], facts["max_new"]),
    ):
        if old is not None and old != new:
            raise ValueError(f"the run had other {what} ({old}, now {new}): replace paths only")
    return job


def build_costs(config: dict, pair: Pair, context: int, *, wanted: bool = False) -> Costs | None:
    """Return the costs given; else, where they are `wanted` or a decoder asks for some, named ones
    if seconds mean nothing, or those of a probe of calls on up to `context` tokens."""
    given = load_costs(config.get("costs"))
    if given is not None or not (wanted or any(map(wants_costs, config["decoder"].values()))):
        return given
    if not config["timing"]:
        return Costs.load(UNTIMED)
    return Costs.measure(pair.target, pair.draft, context=context)


def lengthened(config: dict, task: Task, examples: list[Example], tokenizer) -> list[Example]:
    """Return the examples, with longer prompts where the config has `context_tokens`."""
    tokens = config.get("context_tokens")
    return with_context(examples, task.load(), tokenizer, tokens) if tokens else examples
