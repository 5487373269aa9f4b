"""From a resolved config to objects: the task, the pair of models, a maker for each decoder.

Hydra's `instantiate` is used here only. Invariant: an option that a class does not know, or a value
of another type, is one line that names it, and is told before a model is loaded.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from types import NoneType

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from ouroboros import PhrasePool, vocab
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.loop import Bench, MakeDecoder
from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.bench.run.prompt import longest, with_context
from ouroboros.bench.run.sampling import Sampling
from ouroboros.bench.tasks.task import Example, Task, part_of, select
from ouroboros.costs.named import UNTIMED, named
from ouroboros.costs.probe import probe
from ouroboros.costs.surface import Costs
from ouroboros.drafters import Remembered

SELECTION = ("limit", "stride", "shuffle")
SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (int, "a whole number"),
    "int | None": ((int, NoneType), "a whole number, or null"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a name"),
}


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
    return load_pair(build_spec(config["model"]), with_draft=wants_draft(config["decoder"]))


def build_bench(
    config: dict,
    task: Task,
    examples: list[Example],
    pair: Pair,
    *,
    recorded: Costs | None = None,
) -> Bench:
    """Return what the run measures; with `context_tokens`, the examples have longer prompts.

    `recorded` are the costs that the run's decoders went by before, if it is taken up again.
    """
    examples = part_of(examples, config.get("part"))
    examples = lengthened(config, task, examples, pair.target.tokenizer)
    max_new = task.max_new if config["max_new"] is None else config["max_new"]
    reach = longest(pair.target.tokenizer, examples) + max_new
    costs = recorded or build_costs(config, pair, reach)
    return Bench(
        target=pair.target,
        models=pair.models,
        task=task,
        examples=examples,
        decoders=build_decoders(config["decoder"], pair, costs),
        max_new=max_new,
        repeats=config["repeats"],
        sampling=Sampling(**{name: config[name] for name in SAMPLING}),
        record_predictions=config["record_predictions"],
        record_trees=config.get("record_trees"),
        costs=costs,
    )


def build_costs(config: dict, pair: Pair, context: int) -> Costs | None:
    """Return the costs given; else, where a decoder asks for some, named ones if seconds mean
    nothing, or those of a probe of calls on up to `context` tokens."""
    given = load_costs(config.get("costs"))
    if given is not None or not wants_costs(config["decoder"]):
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
        plain = {key: value for key, value in own.items() if key not in ("draft", "pool")}
        check_arguments(plain, f"decoder.{name}")
        needed = inspect.signature(class_of(own["_target_"], f"decoder.{name}")).parameters
        if "draft" in own and own["draft"] is None and needed["draft"].default is inspect._empty:
            raise ValueError(
                f"decoder.{name} drafts with a small model: give model.draft=<hub id or folder>, "
                "or leave it out of decoder=[...]"
            )


def wants_draft(decoders: dict[str, dict]) -> bool:
    """Return whether one of the configured decoders drafts with a model."""
    return any(decoder.get("draft") is not None for decoder in decoders.values())


def wants_costs(decoders: dict[str, dict]) -> bool:
    """Return whether one of the configured decoders asks what calls cost: it names `costs`, and
    leaves them open."""
    return any("costs" in own and own["costs"] is None for own in decoders.values())


def build_decoders(
    options: dict[str, dict], pair: Pair, costs: Costs | None = None
) -> dict[str, MakeDecoder]:
    """Return a maker for each decoder, tried once.

    A config names its draft by model and its pool by file; here come the model and the pool, and
    `costs` for those that leave theirs open. Each decoder made has a pool of its own.
    """
    makers: dict[str, MakeDecoder] = {}
    for name, own in options.items():
        plain = {key: value for key, value in own.items() if key not in ("draft", "pool")}
        drafts = own.get("draft") is not None
        given: dict[str, object] = {"draft": pair.draft} if drafts else {}
        if wants_costs({name: own}):
            given["costs"] = costs
        pool = load_pool(own, pair) if own.get("pool") else None
        makers[name] = partial(_make, plain, given, pool, f"decoder.{name}")
        makers[name]()
    return makers


def load_pool(decoder: dict, pair: Pair) -> PhrasePool | Remembered:
    """Read the pool that a decoder starts with."""
    path, named = decoder["pool"], vocab.fingerprint(pair.target.tokenizer)
    if decoder.get("policy") != "paper":
        return Remembered.load(path, tokenizer_id=named)
    return PhrasePool.load(
        path,
        tokenizer_id=named,
        phrase_len=decoder["ngram_size"] - 1,
        per_key=max(1, decoder["verification_set_size"], decoder["topk"]),
    )


def check_arguments(options: dict, what: str) -> None:
    """Raise `ValueError` for options that the class in `_target_` does not take, or not so."""
    parameters = inspect.signature(class_of(options["_target_"], what)).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name, value in options.items():
        if name == "_target_":
            continue
        if name not in parameters:
            known = ", ".join(parameters)
            raise ValueError(f"{what} has no option {name!r}: its options are {known}")
        wanted, words = KINDS.get(parameters[name].annotation, (object, ""))
        number = wanted not in (bool, object)
        if not isinstance(value, wanted) or (number and isinstance(value, bool)):
            raise ValueError(f"{what}.{name}={value}: give {words}")


def class_of(name: str, what: str) -> Callable:
    """Return the class of that name. Raises `ValueError` where there is none, and
    `ModuleNotFoundError` where a package that it needs is not installed."""
    module, _, own = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), own)
        if callable(found):
            return found
        raise AttributeError(own)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"{what}._target_={name}: there is no such class") from error
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{what}._target_={name}: there is no such class") from error


def called(make: Callable, what: str):
    """Call `make`; arguments that it does not take become the caller's error."""
    try:
        return make()
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error


def _make(plain: dict, given: dict, pool: PhrasePool | Remembered | None, what: str):
    maker = instantiate(plain, _partial_=True, _convert_="all")
    own_pool = {"pool": pool.copy() if isinstance(pool, PhrasePool) else pool} if pool else {}
    return called(partial(maker, **given, **own_pool), what)
