"""Typed objects from the config of a command."""

from __future__ import annotations

from collections.abc import Mapping

from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.bench.run.prompts import with_context
from ouroboros.bench.run.run import measured_or_named
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.bench.tasks.task import Example, Task
from ouroboros.costs import Costs
from ouroboros.decoders import needs_draft, wants_costs

SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def build_task(options: Mapping) -> tuple[Task, list[Example]]:
    """Return the task and the chosen examples."""
    return TaskSpec.from_mapping(options).load()


def build_spec(options: Mapping) -> PairSpec:
    """Return what to load."""
    return PairSpec.from_mapping(options)


def build_pair(config: Mapping) -> Pair:
    """Load the models that the decoders need."""
    drafts = any(map(needs_draft, config["decoder"].values()))
    return load_pair(build_spec(config["model"]), with_draft=drafts)


def build_sampling(config: Mapping) -> Sampling:
    """Return how tokens are selected."""
    return Sampling(**{name: config[name] for name in SAMPLING})


def build_costs(config: Mapping, pair: Pair, context: int) -> Costs | None:
    """Return the costs given; else, where a decoder asks for costs, measured or named ones."""
    given = load_costs(config.get("costs"))
    if given is not None or not any(map(wants_costs, config["decoder"].values())):
        return given
    return measured_or_named(pair, context=context, timing=config["timing"])


def lengthened(config: Mapping, task: Task, examples: list[Example], tokenizer) -> list[Example]:
    """Return the examples, with longer prompts where the config has `context_tokens`."""
    tokens = config.get("context_tokens")
    return with_context(examples, task.load(), tokenizer, tokens) if tokens else examples
