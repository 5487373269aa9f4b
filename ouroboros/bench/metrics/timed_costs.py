"""Costs from the samples of a timed run: what its calls took, with no measurement of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from ouroboros.bench.metrics.sample import Sample
from ouroboros.costs.surface import Costs, Surface, draft_nodes
from ouroboros.trace import StepRecord


def costs_of(samples: Sequence[Sample]) -> Costs:
    """Return the medians of timed samples, over all their contexts together; first steps hold
    the prefill and count only there.

    Raises `ValueError` where there is no step to learn from.
    """
    later = [(s.decoder, step) for s in samples for step in s.steps[1:] if step.scored]
    if not later:
        raise ValueError("these samples have no timed steps: give those of a timing run")
    verify = _medians((step.scored, 1e3 * step.verify_s) for _, step in later)
    hosts = [(name, 1e3 * step.host_s) for name, step in later]
    first = [1e3 * s.steps[0].verify_s for s in samples if s.steps and s.steps[0].scored]
    context = max(s.prompt_tokens + len(s.new_tokens) for s in samples)
    return Costs(
        Surface({context: verify}),
        _drafting([step for _, step in later if step.draft_calls], context),
        {**_medians(hosts), "": median(ms for _, ms in hosts)},
        max(0.0, median(first) - verify[min(verify)]),
    )


def _drafting(steps: Sequence[StepRecord], context: int) -> Surface | None:
    """What draft calls cost in some steps, by the nodes that each scored; the same for all where
    the steps do not say."""
    if not steps:
        return None
    if not all(step.draft_scored for step in steps):
        calls = sum(step.draft_calls for step in steps)
        return Surface.constant(1e3 * sum(step.draft_s for step in steps) / calls)
    pairs = ((draft_nodes(step), 1e3 * step.draft_s / step.draft_calls) for step in steps)
    return Surface({context: _medians(pairs)})


def _medians(pairs: Iterable[tuple]) -> dict:
    """Return the median value of each key, keys in order."""
    found: dict = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: median(found[key]) for key in sorted(found)}
