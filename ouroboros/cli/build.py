"""From a resolved config to objects: the task, the pair of models, the decoders, the run.

Hydra's `instantiate` is used here only. Invariant: every decoder that any command runs is made by
`make_decoder`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ouroboros import PhrasePool, vocab
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.costs import load_costs, recorded_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import check_files
from ouroboros.bench.run.loop import Bench, Decoder, DecoderFactory
from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.bench.run.parallel import drafting_on_first, shared_pair
from ouroboros.bench.run.prompts import longest, with_context
from ouroboros.bench.run.run import run_facts
from ouroboros.bench.tasks.task import Example, Task, part_of, select
from ouroboros.cli.configs import called, check_arguments, parameters_of, plain
from ouroboros.costs.named import UNTIMED, named
from ouroboros.costs.probe import probe
from ouroboros.costs.surface import Costs
from ouroboros.drafters import DrafterMemory
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import Ranks, told

SELECTION = ("limit", "stride", "shuffle")
SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
BY_NAME = ("draft", "pool")
"""What a decoder's config only names: here come the model and the pool themselves."""


def build_task(options: dict) -> tuple[Task, list[Example]]:
    """Return the task and the chosen examples."""
    own = {key: value for key, value in options.items() if key not in SELECTION}
    check_arguments(own, "task")
    task = called(instantiate(own, _partial_=True, _convert_="all"), "task")
    return task, select(task.load(), **{key: options[key] for key in SELECTION if key in options})


def build_spec(options: dict) -> PairSpec:
    """Return what to load."""
    check_arguments({"_target_": "ouroboros.bench.run.pair.PairSpec", **options}, "model")
    try:
        made = instantiate(options, _convert_="all")
    except InstantiationException as error:
        reason = " ".join(str(error).split(", set env var")[0].split())
        raise ValueError(f"model: {reason}: is its package installed? (pip install)") from error
    return called(partial(PairSpec, **made), "model")


def build_pair(config: dict) -> Pair:
    """Load the models that the decoders need."""
    return load_pair(build_spec(config["model"]), with_draft=any_drafts(config["decoder"]))


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
    decoders = build_decoders(config["decoder"], pair, costs)
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
    return probe(pair.target, pair.draft, context=context) if config["timing"] else named(UNTIMED)


def lengthened(config: dict, task: Task, examples: list[Example], tokenizer) -> list[Example]:
    """Return the examples, with longer prompts where the config has `context_tokens`."""
    tokens = config.get("context_tokens")
    return with_context(examples, task.load(), tokenizer, tokens) if tokens else examples


def check_decoders(options: dict[str, dict] | None) -> None:
    """Raise `ValueError` for decoders whose options cannot be, before anything is loaded."""
    if not options:
        raise ValueError("decoder=[] leaves nothing to run: give one or more, as decoder=[greedy]")
    for name, own in options.items():
        what = f"decoder.{name}"
        check_arguments(_by_value(own), what)
        needed = parameters_of(own, what)
        if "draft" in own and own["draft"] is None and needed["draft"].default is inspect._empty:
            raise ValueError(
                f"{what} drafts with a small model: give model.draft=<hub id or folder>, "
                "or leave it out of decoder=[...]"
            )


def any_drafts(decoders: Mapping[str, Mapping]) -> bool:
    """Return whether one of the configured decoders drafts with a model."""
    return any(own.get("draft") is not None for own in decoders.values())


def wants_costs(own: Mapping) -> bool:
    """Return whether a configured decoder is to be told what calls cost: its class takes `costs`,
    and the config leaves them open."""
    return own.get("costs") is None and "costs" in parameters_of(own, "decoder")


def build_decoders(
    options: dict[str, dict], pair: Pair, costs: Costs | None = None
) -> dict[str, DecoderFactory]:
    """Return a maker for each decoder, tried once; each decoder made has a pool of its own."""
    makers: dict[str, DecoderFactory] = {}
    for name, own in options.items():
        pool = load_pool(own, pair) if own.get("pool") else None
        what = f"decoder.{name}"
        makers[name] = partial(make_decoder, own, pair.draft, costs, pool=pool, what=what)
        makers[name]()
    return makers


def make_decoder(
    own: Mapping,
    draft: CachedModel | None,
    costs: Costs | None,
    *,
    pool: PhrasePool | DrafterMemory | None = None,
    what: str = "decoder",
) -> Decoder:
    """Return a new decoder of a config, which names its draft by model and its pool by file: here
    come `draft`, a copy of `pool`, and `costs` where the class takes some and the config
    leaves them open. Raises `ValueError`, beginning with `what`, for options that cannot be."""
    given: dict[str, object] = {}
    if own.get("draft") is not None:
        given["draft"] = draft
    if wants_costs(own):
        given["costs"] = costs
    if pool is not None:
        given["pool"] = pool.copy() if isinstance(pool, PhrasePool) else pool
    make = instantiate(_by_value(own), _partial_=True, _convert_="all")
    return called(partial(make, **given), what)


def load_pool(decoder: dict, pair: Pair) -> PhrasePool | DrafterMemory:
    """Read the pool that a decoder starts with."""
    path, named = decoder["pool"], vocab.fingerprint(pair.target.tokenizer)
    if not decoder["_target_"].endswith("OuroborosPaper"):
        return DrafterMemory.load(path, tokenizer_id=named)
    return PhrasePool.load(
        path,
        tokenizer_id=named,
        phrase_len=decoder["ngram_size"] - 1,
        per_key=max(1, decoder["verification_set_size"], decoder["topk"]),
    )


def _by_value(own: Mapping) -> dict:
    return {key: value for key, value in own.items() if key not in BY_NAME}
