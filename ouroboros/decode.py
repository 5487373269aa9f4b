"""The decoding loop: propose, score, match, accept, observe.

Every decoder is this loop with another drafter, and a drafter that drafts with a small model runs
the same loop on that model (`extend`). End-of-sequence and length rules live here only.

Invariant (lossless): the tokens equal those of the loop without any draft, whatever the drafter
proposes, because a token is kept only if the target chose it after exactly the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import NO_CHOICE, Ranked, TokenSelector, TopKRecorder, argmax
from ouroboros.trace import DecodeTrace, StepRecord
from ouroboros.tree import TokenTree


@runtime_checkable
class Drafter(Protocol):
    """Proposes draft tokens. `DrafterCapabilities` lists what it may have besides these methods."""

    def reset(self, choose: TokenSelector) -> None:
        """Begin a new prompt; called once for each prompt, by the outermost loop only."""
        ...

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return a tree rooted at `tokens[-1]`. `budget` new tokens, at least 1, are wanted: the
        target adds one, so nodes deeper than `budget` - 1 are scored in vain."""
        ...

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from a scored tree: `chosen[i]` is the target's token after node i (-1 where no
        logits were wanted), rejected nodes included; `path` are the accepted nodes, root first."""
        ...


@dataclass(frozen=True)
class DrafterCapabilities:
    """What a drafter may have besides its three methods, and the defaults where it has not."""

    draft: CachedModel | None = None
    """The draft model."""

    draft_sequence: CachedSequence | None = None
    """The sequence on which `propose` calls the draft model, begun in `reset`: the loop reads its
    counters."""

    reads_rejected: bool = False
    """Whether it learns from the target's choices at nodes that were not accepted."""

    rule: Callable[[TokenSelector], TokenSelector] = lambda choose: choose
    """Returns the selector that the loop shall use instead, for a drafter that preserves the
    distribution, not individual tokens (rejection sampling)."""

    ranks: int = 0
    """How many of the target's best tokens after each of the tree's `logit_nodes` it wants."""

    observe_ranked: Callable[[TokenTree, Ranked, Sequence[int]], None] = lambda *_: None
    """Takes them, before `observe`: (tree, ranked, path), row i after node `tree.logit_nodes[i]`;
    called only where `ranks` is above 0."""

    @classmethod
    def of(cls, drafter: object) -> DrafterCapabilities:
        """Return a drafter's capabilities."""
        names = (field.name for field in fields(cls))
        return cls(**{name: getattr(drafter, name) for name in names if hasattr(drafter, name)})


class RootOnly:
    """Drafts nothing: standard decoding, and the draft chain of speculative decoding."""

    draft: CachedModel | None = None

    def reset(self, choose: TokenSelector) -> None:
        """Nothing is kept between prompts."""

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the root alone."""
        return TokenTree.chain(tokens[-1], ())

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Nothing to learn."""


class StepRecorder:
    """Counts and times the steps of one loop: `start` a step, `finish` it with its outcome."""

    def __init__(self, target: CachedSequence, draft: CachedSequence | None) -> None:
        self.target = target
        self.draft = draft or CachedSequence()

    def start(self) -> None:
        """Begin a step."""
        self._before = self.draft.counters, self.target.counters
        self._started = time.perf_counter()

    def finish(self, tree: TokenTree, path: Sequence[int], new: int) -> StepRecord:
        """Return the record of a step that matched `path` and added `new` tokens.

        The sources of the tokens are those of their nodes, and for the target's own token after the
        path "correction" where the draft continued otherwise, "bonus" after a draft that matched to
        its end, "target" where there was no draft.
        """
        last, names = path[-1], tree.source or ("",) * len(tree)
        own = "correction" if tree.has_children(last) else "bonus" if last else "target"
        sources = (*(names[node] for node in path[1:]), own)[:new]
        elapsed_s = time.perf_counter() - self._started
        drafting = self.draft.counters.since(self._before[0])
        verifying = self.target.counters.since(self._before[1])
        return StepRecord(
            drafted=tree.draft_depth(),
            scored=len(tree),
            accepted=min(len(path), new) - 1,
            new=new,
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


def predict(
    model: CachedModel,
    sequence: CachedSequence,
    tokens: Sequence[int],
    tree: TokenTree,
    choose: TokenSelector | TopKRecorder,
) -> list[int]:
    """Return the token chosen after each node of a tree (-1 where no logits are wanted): one call
    of the model and one wait for its result."""
    logits = model.score(sequence, tokens, tree)
    started = time.perf_counter()
    rows = choose(logits, tokens, tree)
    waited = time.perf_counter() - started
    sequence.busy_s += waited
    sequence.wait_s += waited
    if len(rows) == len(tree):
        return rows
    chosen = [-1] * len(tree)
    for node, token in zip(tree.logit_nodes, rows, strict=True):
        chosen[node] = token
    return chosen


def extend(
    model: CachedModel,
    drafter: Drafter,
    tokens: list[int],
    max_new: int,
    *,
    sequence: CachedSequence | None = None,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> Iterator[StepRecord]:
    """Append up to `max_new` tokens to `tokens` in place, yielding a record after each step.

    Ends after the first end-of-sequence token, at `max_new`, or where the model has no position
    left. `sequence` is the model's state of this text (None: a new one). The drafter is not reset.
    """
    sequence = model.new_sequence() if sequence is None else sequence
    capabilities = DrafterCapabilities.of(drafter)
    ranking = TopKRecorder(choose, capabilities.ranks) if capabilities.ranks else None
    recorder = StepRecorder(sequence, capabilities.draft_sequence)
    left = min(max_new, model.room(sequence, tokens) + 1)
    while left > 0:
        recorder.start()
        tree = propose(drafter, tokens, left).pruned(model.room(sequence, tokens))
        chosen = predict(model, sequence, tokens, tree, ranking or choose)
        path = tree.longest_match(chosen)
        new = [*(tree.tokens[node] for node in path[1:]), chosen[path[-1]]]
        new = new[: next((n for n, token in enumerate(new[:left], 1) if token in eos), left)]
        if new[-1] == NO_CHOICE:
            raise ValueError(
                f"there is no distribution to sample token {len(tokens) + len(new) - 1} from: the "
                "model's logits hold NaN or infinity, or processors exclude every id"
            )
        kept = path[: len(new)]
        model.accept(sequence, kept)
        if ranking:
            capabilities.observe_ranked(tree, ranking.last, kept)
        drafter.observe(tree, chosen, kept)
        tokens += new
        left = 0 if new[-1] in eos else left - len(new)
        yield recorder.finish(tree, path, len(new))


def propose(drafter: Drafter, tokens: Sequence[int], left: int) -> TokenTree:
    """Return the tree that a drafter proposes. Raises `ValueError` if it proposes anything else."""
    tree = drafter.propose(tokens, left)
    if not isinstance(tree, TokenTree):
        raise ValueError(
            f"{type(drafter).__name__}.propose returned a {type(tree).__name__}: return a "
            "TokenTree, such as TokenTree.chain(tokens[-1], drafted)"
        )
    return tree


def check_drafter(drafter: Drafter) -> None:
    """Raise `ValueError` for a drafter that lacks one of the three methods."""
    if isinstance(drafter, type):
        raise ValueError(f"{drafter.__name__} is a class: give a drafter made of it")
    methods = ("reset", "propose", "observe")
    if lacking := [name for name in methods if not callable(getattr(drafter, name, None))]:
        named = type(drafter).__name__
        raise ValueError(f"{named} is no drafter: it has no method {', '.join(lacking)}")


def stream(
    target: CachedModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new: int,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> Iterator[DecodeTrace]:
    """Decode, yielding the same growing trace after each step (and once if there is no step).

    Raises `ValueError` for an empty prompt, one longer than the context or with unknown ids, a
    negative `max_new`, a model in training mode, and a drafter that lacks a method or proposes
    anything but a tree.
    """
    if not prompt:
        raise ValueError("the prompt is empty: give at least one token, such as the model's BOS")
    if max_new < 0 or max_new != int(max_new):
        raise ValueError(f"max_new is {max_new}; it must be a whole number, 0 or more")
    if len(prompt) > target.max_len:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens, the model's context {target.max_len}: "
            "shorten the prompt or choose a model with a longer context"
        )
    if unknown := [token for token in prompt if not 0 <= token < target.vocab_size]:
        raise ValueError(
            f"the prompt holds id {unknown[0]}, the model knows ids 0 to {target.vocab_size - 1}: "
            "give the ids of the model's own tokenizer"
        )
    check_drafter(drafter)
    trace, capabilities = DecodeTrace(list(prompt), len(prompt)), DrafterCapabilities.of(drafter)
    rule = capabilities.rule(choose)
    own_rule, choose = rule is not choose, rule
    for model in (target, capabilities.draft):
        if model is None:
            continue
        if getattr(getattr(model, "model", None), "training", False):
            raise ValueError("a model in training mode drops activations at random: call eval()")
        choose = model.adapt_selector(choose, own_rule=own_rule)
    drafter.reset(choose)
    for record in extend(target, drafter, trace.tokens, int(max_new), eos=eos, choose=choose):
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
