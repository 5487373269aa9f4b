"""The one loop: propose -> score -> choose -> match -> accept -> observe.

Every decoder is this loop with another drafter, and a drafter that drafts with a small model runs
the same loop on it (`extend`). End of sequence and length rules live here only.

Invariant (lossless): the tokens are those that the loop gives with no draft at all, whatever the
drafter proposes, because a token is kept only if the target chose it after the very same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, runtime_checkable

from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.sharded import gathered
from ouroboros.select import Ranked, TokenSelector, TopKRecorder, argmax
from ouroboros.trace import DecodeTrace, StepRecord
from ouroboros.tree import TokenTree


@runtime_checkable
class Drafter(Protocol):
    """Proposes what may come next. It may have more than these three methods: see `DrafterCapabilities`."""

    def reset(self, choose: TokenSelector) -> None:
        """Forget the prompt before; called once for each prompt, by the outermost loop only."""
        ...

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return a tree rooted at `tokens[-1]`. `budget`: new tokens still wanted (at least 1)."""
        ...

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn: `chosen[i]` is the target's token after node i (-1 if not asked), rejected nodes
        included; `path` are the accepted nodes, root first."""
        ...


@dataclass(frozen=True)
class DrafterCapabilities:
    """What a drafter may have besides its three methods; what it lacks is as it stands here."""

    draft: CachedModel | None = None
    """The model that it calls: the loop counts its calls and time."""

    reads_rejected: bool = False
    """Whether it learns from predictions at nodes that were not accepted."""

    rule: Callable[[TokenSelector], TokenSelector] = lambda choose: choose
    """Returns the choice that the loop shall use instead, for a drafter that is exact in law only,
    not token for token."""

    ranks: int = 0
    """How many of the target's best tokens after every asked node it wants to see."""

    observe_ranked: Callable[[TokenTree, Ranked, Sequence[int]], None] = lambda *_: None
    """Takes them: (tree, ranked, path), row i after node `tree.logit_nodes[i]`, before `observe`; called
    only where `ranks` is above 0."""

    @classmethod
    def of(cls, drafter: object) -> DrafterCapabilities:
        """Return what a drafter has."""
        names = (one.name for one in fields(cls))
        return cls(**{name: getattr(drafter, name) for name in names if hasattr(drafter, name)})


class RootOnly:
    """Drafts nothing: plain decoding. Greedy, and the plain draft chain of speculative decoding."""

    draft: CachedModel | None = None

    def reset(self, choose: TokenSelector) -> None:
        """Nothing is kept between prompts."""

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the root alone."""
        return TokenTree.chain(tokens[-1], ())

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Nothing to learn."""


class ModelCounters(NamedTuple):
    """What a model has been used for so far; nothing where there is no model."""

    calls: int = 0
    forwards: int = 0
    scored: int = 0
    caught_up: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0

    @classmethod
    def of(cls, model: CachedModel | None) -> ModelCounters:
        """Read a model's counters."""
        if model is None:
            return cls()
        return cls(*(getattr(model, name) for name in cls._fields))

    def since(self, before: ModelCounters) -> ModelCounters:
        """Return what came after `before`."""
        passed = (now - then for now, then in zip(self, before, strict=True))
        return ModelCounters(*passed)  # type: ignore[arg-type]


def predict(
    model: CachedModel, tokens: Sequence[int], tree: TokenTree, choose: TokenSelector | TopKRecorder
) -> list[int]:
    """Score a tree and wait, once, for the token chosen after each node (-1 if not asked)."""
    logits = model.score(tokens, tree)
    started = time.perf_counter()
    asked = choose(logits, tokens, tree)
    waited = time.perf_counter() - started
    model.busy_s += waited
    model.wait_s += waited
    if len(asked) == len(tree):
        return asked
    chosen = [-1] * len(tree)
    for node, token in zip(tree.logit_nodes, asked, strict=True):
        chosen[node] = token
    return chosen


def extend(
    model: CachedModel,
    drafter: Drafter,
    tokens: list[int],
    max_new: int,
    *,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> Iterator[StepRecord]:
    """Append up to `max_new` tokens to `tokens` in place, yielding a record after each step.

    Ends after the first end-of-sequence token, at `max_new`, or where the model has no position
    left. The drafter is not reset: its window and pool live on.
    """
    left = min(max_new, model.max_len - len(tokens) + 1)
    traits = DrafterCapabilities.of(drafter)
    small, noted = traits.draft, TopKRecorder(choose, traits.ranks)
    while left > 0:
        start, before = time.perf_counter(), ModelCounters.of(small)
        tree = proposed(drafter, tokens, left).pruned(model.max_len - len(tokens))
        drafting = ModelCounters.of(small).since(before)
        before = ModelCounters.of(model)
        chosen = predict(model, tokens, tree, noted if traits.ranks else choose)
        verifying = ModelCounters.of(model).since(before)
        path = tree.longest_match(chosen)
        sources = _sources(tree, path)
        fresh = [*(tree.tokens[node] for node in path[1:]), chosen[path[-1]]]
        fresh = fresh[: _end(fresh, eos, left)]
        path = path[: len(fresh)]
        model.accept(path)
        if traits.ranks:
            traits.observe_ranked(tree, noted.last, path)
        drafter.observe(tree, chosen, path)
        tokens += fresh
        left = 0 if fresh[-1] in eos else left - len(fresh)
        elapsed = time.perf_counter() - start
        yield _record(tree, path, sources[: len(fresh)], drafting, verifying, elapsed)


def _record(
    tree: TokenTree,
    path: Sequence[int],
    sources: tuple[str, ...],
    drafting: ModelCounters,
    verifying: ModelCounters,
    elapsed_s: float,
) -> StepRecord:
    """Return what a step did; `sources` has a name for each new token."""
    return StepRecord(
        drafted=tree.draft_depth(),
        scored=len(tree),
        accepted=len(path) - 1,
        new=len(sources),
        draft_calls=drafting.calls,
        sources=sources,
        draft_s=drafting.busy_s,
        verify_s=verifying.busy_s,
        host_s=elapsed_s - drafting.busy_s - verifying.busy_s,
        wait_s=drafting.wait_s + verifying.wait_s,
        draft_scored=drafting.scored,
        draft_caught_up=drafting.caught_up,
        target_forwards=verifying.forwards,
        draft_forwards=drafting.forwards,
    )


def proposed(drafter: Drafter, tokens: Sequence[int], left: int) -> TokenTree:
    """Return what a drafter proposes. Raises `ValueError` for anything but a tree."""
    tree = drafter.propose(tokens, left)
    if not isinstance(tree, TokenTree):
        raise ValueError(
            f"{type(drafter).__name__}.propose returned a {type(tree).__name__}: return a "
            "TokenTree, such as TokenTree.chain(tokens[-1], drafted)"
        )
    return tree


def check_drafter(drafter: Drafter) -> None:
    """Raise `ValueError` for a drafter without one of the three methods."""
    lacking = [
        n for n in ("reset", "propose", "observe") if not callable(getattr(drafter, n, None))
    ]
    if lacking:
        named = drafter.__name__ if isinstance(drafter, type) else type(drafter).__name__
        raise ValueError(f"{named} is no drafter: it has no method {', '.join(lacking)}")
    if isinstance(drafter, type):
        raise ValueError(f"{drafter.__name__} is a class: give a drafter made of it")


def _end(fresh: Sequence[int], eos: Collection[int], left: int) -> int:
    """Return how many of the new tokens stay: up to the first end-of-sequence, at most `left`."""
    if eos:
        for index, token in enumerate(fresh[:left]):
            if token in eos:
                return index + 1
    return left


def _sources(tree: TokenTree, path: Sequence[int]) -> tuple[str, ...]:
    """Return who proposed each token of an accepted path, and the one after it, the target's own:
    a "correction" where the draft went on otherwise, a "bonus" after a draft that matched to its
    end, "target" where there was none."""
    names = tree.source or ("",) * len(tree)
    last = path[-1]
    own = "correction" if tree.has_children(last) else "bonus" if last else "target"
    return (*(names[node] for node in path[1:]), own)


def stream(
    target: CachedModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new: int,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> Iterator[DecodeTrace]:
    """Decode, yielding the one growing trace after each step (and once if there is none).

    Raises `ValueError` for an empty prompt, one longer than the context, a negative `max_new`, and
    a drafter that lacks a method or proposes anything but a tree.
    """
    if not prompt:
        raise ValueError("the prompt is empty: give at least one token, such as the model's BOS")
    if max_new < 0:
        raise ValueError(f"max_new is {max_new}; it must be 0 or more")
    if len(prompt) > target.max_len:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens, the model's context {target.max_len}: "
            "shorten the prompt or choose a model with a longer context"
        )
    check_drafter(drafter)
    trace = DecodeTrace(list(prompt), len(prompt))
    traits = DrafterCapabilities.of(drafter)
    choose = gathered(choose, traits.rule(choose), (target, traits.draft))
    drafter.reset(choose)
    for record in extend(target, drafter, trace.tokens, max_new, eos=eos, choose=choose):
        trace.steps.append(record)
        if trace.tokens[-1] in eos:
            trace.finish = "eos"
        elif len(trace.tokens) > target.max_len:
            trace.finish = "context"
        yield trace
    if not trace.steps:
        yield trace


def decode(
    target: CachedModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new: int,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> DecodeTrace:
    """Return the trace of a whole run; arguments and errors as `stream`."""
    *_, trace = stream(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose)
    return trace
