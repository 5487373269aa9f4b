"""The decoding loop: propose, score, match, accept, observe.

Every decoder is this loop with its own drafter. Drafters that draft with a small model run the same
loop on that model. Of our own decoders, only this loop applies end-of-sequence and length rules.

A step is a generator that yields its model calls (see `ouroboros.calls`). So several sequences can
share calls (`together`), while a single sequence runs the same code (`stream`).

Invariant (lossless): the tokens equal those of standard decoding, whatever the drafter proposes,
because a token is kept only if the target chose it after exactly the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, islice
from operator import index
from types import GeneratorType
from typing import Protocol, runtime_checkable

import torch

from ouroboros.calls import Steps, alone, jointly, predict
from ouroboros.core.select import NO_CHOICE, Ranked, TokenSelector, TopKRecorder, argmax
from ouroboros.core.trace import DecodeTrace, StepRecord
from ouroboros.core.tree import TokenTree
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence


@runtime_checkable
class Drafter(Protocol):
    """Proposes draft tokens. `DrafterCapabilities` lists its optional attributes and methods."""

    def reset(self, choose: TokenSelector) -> None:
        """Begin a new prompt, decoded with `choose`. `begin` calls this once per prompt."""
        ...

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree | Steps[TokenTree]:
        """Return a tree rooted at `tokens[-1]`. The step adds at least one and at most `budget`
        tokens; the target chooses the last one, so nodes deeper than `budget` - 1 are useless. To
        call a model, write a generator: `chosen = yield from predict(model, sequence, ...)`."""
        ...

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from a scored tree. `chosen[i]` is the token that the target chose after node i,
        even if i was rejected (-1 without logits); `path` lists the accepted nodes, root first."""
        ...


@dataclass(frozen=True)
class DrafterCapabilities:
    """Optional attributes and methods of a drafter, and their defaults."""

    draft: CachedModel | None = None
    """The draft model."""

    draft_sequence: CachedSequence | None = None
    """The draft model's sequence, created in `reset`; the loop reads its counters."""

    reads_rejected: bool = False
    """Whether the drafter learns from the target's choices at rejected nodes."""

    rule: Callable[[TokenSelector], TokenSelector] = lambda choose: choose
    """Takes the loop's selector and returns the one to use instead. For drafters that preserve the
    distribution but not individual tokens (rejection sampling)."""

    set_batch: Callable[[int, int], None] = lambda size, number: None
    """Called before each step with the number of sequences that share its calls, and the number of
    the step. Both are the same for all these sequences."""

    ranks: int = 0
    """How many of the target's best tokens per logit node `observe_ranked` receives."""

    observe_ranked: Callable[[TokenTree, Ranked, Sequence[int]], None] = lambda *_: None
    """Called before `observe` with (tree, ranked, path), if `ranks` is above 0. Row i of `ranked`
    has the best tokens after node `tree.logit_nodes[i]`."""

    observe_step: Callable[[StepRecord], None] = lambda _: None
    """Called after `observe` with the record of the step, which includes its times."""

    @classmethod
    def of(cls, drafter: object) -> DrafterCapabilities:
        """Return a drafter's capabilities."""
        names = (field.name for field in fields(cls))
        return cls(**{name: getattr(drafter, name) for name in names if hasattr(drafter, name)})


class RootOnly:
    """Proposes the root alone: the loop is then standard decoding."""

    def reset(self, choose: TokenSelector) -> None:
        """Do nothing."""

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the root alone."""
        return TokenTree.chain(tokens[-1], ())

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Do nothing."""


class NoDistribution(ValueError):
    """Raised if there is no distribution to sample the next token from."""


def proposed(drafter: Drafter, tokens: Sequence[int], left: int) -> Steps[TokenTree]:
    """Call a drafter's `propose` (a generator or a plain function) with `left` as budget; return
    its tree. Raises `ValueError` for any other result, and for tensors instead of ids."""
    tree = drafter.propose(tokens, left)
    if isinstance(tree, GeneratorType):
        tree = yield from tree
    if not isinstance(tree, TokenTree):
        raise ValueError(
            f"{type(drafter).__name__}.propose returned a {type(tree).__name__}: return a "
            "TokenTree, such as TokenTree.chain(tokens[-1], drafted)"
        )
    if isinstance(tree.tokens[-1], torch.Tensor):  # which equals no token that the target chose
        raise ValueError(
            f"{type(drafter).__name__}.propose drafted tensors: give ids, such as drafted.tolist()"
        )
    return tree


class Decoding:
    """The decoding of one sequence: each `step` appends tokens to `trace`, until `left` is 0.

    `left` is the number of tokens still to generate. It becomes 0 after an end-of-sequence token,
    after `max_new` tokens and at the model's last position; set it to 0 to stop earlier. `sequence`
    is the sequence's state in the model (None: a new one). To also reset the drafter, use `begin`.
    """

    def __init__(
        self,
        model: CachedModel,
        drafter: Drafter,
        tokens: list[int],
        max_new: int,
        *,
        sequence: CachedSequence | None = None,
        eos: Collection[int] = (),
        choose: TokenSelector = argmax,
    ) -> None:
        self.model, self.drafter, self.eos, self.choose = model, drafter, eos, choose
        self.sequence = model.new_sequence() if sequence is None else sequence
        self.trace = DecodeTrace(tokens, len(tokens))
        self.left = min(max_new, model.room(self.sequence, tokens) + 1)
        self.capabilities = DrafterCapabilities.of(drafter)
        self._draft_sequence = self.capabilities.draft_sequence or CachedSequence()
        ranks = self.capabilities.ranks
        self._ranking = TopKRecorder(choose, ranks) if ranks else None

    def step(self) -> Steps[StepRecord]:
        """Take one step: propose, score, match, accept, observe."""
        draft_sequence, sequence, started = self._draft_sequence, self.sequence, time.perf_counter()
        draft_before, target_before = draft_sequence.counters, sequence.counters
        tree = yield from self.propose()
        room = self.model.room(sequence, self.trace.tokens)
        tree = tree.pruned(room if tree.draft_depth() < self.left else self.left - 1)
        chosen = yield from self.score(tree)
        path, new = self.match(tree, chosen)
        self.accept(path, new)
        self.observe(tree, chosen, path[: len(new)])
        last, names = path[-1], tree.source or ("",) * len(tree)
        last_source = "correction" if tree.has_children(last) else "bonus" if last else "target"
        elapsed_s = time.perf_counter() - started
        drafting = draft_sequence.counters.since(draft_before)
        verifying = sequence.counters.since(target_before)
        record = StepRecord(
            drafted=tree.draft_depth(),
            scored=len(tree),
            accepted=min(len(path), len(new)) - 1,
            new=len(new),
            draft_calls=drafting.calls,
            sources=(*[names[node] for node in path[1:]], last_source)[: len(new)],
            draft_s=drafting.busy_s,
            verify_s=verifying.busy_s,
            host_s=elapsed_s - drafting.busy_s - verifying.busy_s,
            wait_s=drafting.wait_s + verifying.wait_s,
            draft_scored=drafting.scored,
            draft_caught_up=drafting.caught_up,
            target_forwards=verifying.forwards,
            draft_forwards=drafting.forwards,
        )
        self.capabilities.observe_step(record)
        self.trace.steps.append(record)
        return record

    def propose(self) -> Steps[TokenTree]:
        """Return the drafter's tree."""
        return proposed(self.drafter, self.trace.tokens, self.left)

    def score(self, tree: TokenTree) -> Steps[list[int]]:
        """Score the tree in one target call; return the token chosen after each node."""
        choose = self._ranking or self.choose
        return predict(self.model, self.sequence, self.trace.tokens, tree, choose)

    def match(self, tree: TokenTree, chosen: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return (accepted path, new tokens). The new tokens are the accepted draft tokens and the
        target's next token, truncated after an end-of-sequence token and to `left` tokens. Raises
        `ValueError` if there was no distribution to sample the first new token from; a later one is
        left to the next step, because the text may end before it."""
        path = tree.longest_match(chosen)
        new = [*[tree.tokens[node] for node in path[1:]], chosen[path[-1]]][: self.left]
        for end, token in enumerate(new, 1):
            if token in self.eos:
                del new[end:]
                break
        if new == [NO_CHOICE]:
            remedy = ""
            if getattr(self.model, "dtype", None) == torch.float16:
                remedy = "; float16 overflows easily: load the model in bfloat16 or float32"
            raise NoDistribution(
                f"there is no distribution to sample token {len(self.trace.tokens)} from: the "
                f"model's logits contain NaN or infinity, or processors exclude every id{remedy}"
            )
        if new[-1] == NO_CHOICE:
            del new[-1]
        return path, new

    def accept(self, path: Sequence[int], new: Sequence[int]) -> None:
        """Append the new tokens; keep the cached nodes of the path."""
        self.model.accept(self.sequence, path[: len(new)])
        self.trace.tokens += new
        self.left -= len(new)
        if new[-1] in self.eos:
            self.left, self.trace.finish = 0, "eos"
        elif len(self.trace.tokens) > self.model.max_len:
            self.trace.finish = "context"

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Let the drafter learn from the scored tree, and from the ranking if it reads rankings."""
        if self._ranking:
            self.capabilities.observe_ranked(tree, self._ranking.last, path)
        self.drafter.observe(tree, chosen, path)


def check_drafter(drafter: Drafter) -> None:
    """Raise `ValueError` for a drafter without `reset`, `propose` or `observe`, or for a class."""
    if isinstance(drafter, type):
        raise ValueError(f"{drafter.__name__} is a class: give an instance of it")
    methods = ("reset", "propose", "observe")
    if lacking := [name for name in methods if not callable(getattr(drafter, name, None))]:
        named = type(drafter).__name__
        raise ValueError(f"{named} is not a drafter: it has no method {', '.join(lacking)}")


def begin(
    target: CachedModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new: int,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> Decoding:
    """Reset the drafter and return the decoding of a prompt, before its first step.

    Raises `ValueError` for a prompt that is empty, longer than the context or has unknown ids; for
    a negative `max_new`; for a target with a `prefill_limit`; for a model in training mode; and for
    a drafter that lacks a method.
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
    if target.prefill_limit is not None:
        raise ValueError(
            f"the target's prefill_limit is {target.prefill_limit}; set it to None: a target reads "
            "its whole prompt, a draft may read the end alone"
        )
    if target.head is not None:
        raise ValueError(
            "the target's head is trimmed: give draft_head to the draft only, as a target must "
            "score all ids"
        )
    check_drafter(drafter)
    capabilities = DrafterCapabilities.of(drafter)
    rule = capabilities.rule(choose)
    own_rule, choose = rule is not choose, rule
    for model in (target, capabilities.draft):
        if model is None:
            continue
        if getattr(getattr(model, "model", None), "training", False):
            raise ValueError("a model in training mode drops activations at random: call eval()")
        choose = model.adapt_selector(choose, own_rule=own_rule)
    drafter.reset(choose)
    prompt, ends = list(map(index, prompt)), frozenset(map(int, eos))
    return Decoding(target, drafter, prompt, int(max_new), eos=ends, choose=choose)


def together(
    decodings: Iterable[Decoding],
    size: int,
    *,
    refill: bool = True,
    on_error: Callable[[Decoding, Exception], object] | None = None,
) -> Iterator[list[Decoding]]:
    """Decode up to `size` sequences together; after each step, yield the decodings that took part.

    All sequences share one target; each has its own drafter, or `ValueError` is raised. In a step,
    sequences that wait for the same model share one call. A decoding that ends is yielded one last
    time. With `refill` the next one then takes its place; otherwise the next batch begins when all
    have ended. Decodings are taken from the iterable only when they begin. With `size` 1, no call
    is joint.

    If a step fails, the exception is raised. With `on_error`, the failed decoding ends, `on_error`
    receives it with the exception, and the other decodings continue.
    """
    waiting, live = iter(decodings), list[Decoding]()
    for number in count():
        if refill or not live:
            live += islice(waiting, size - len(live))
            if len({id(decoding.drafter) for decoding in live}) < len(live):
                raise ValueError("several sequences share one drafter: give each its own")
        if not live:
            return
        working = [decoding for decoding in live if decoding.left > 0]
        for decoding in working:
            decoding.capabilities.set_batch(len(working), number)
        started, steps = time.perf_counter(), [decoding.step() for decoding in working]
        outcomes: list[StepRecord | Exception]
        try:
            outcomes = jointly(steps, live[0].model) if size > 1 else [alone(s) for s in steps]
        except Exception as error:
            outcomes = [error]
        if size > 1:
            _divide_time(outcomes, time.perf_counter() - started)
        for decoding, outcome in zip(working, outcomes, strict=True):
            if isinstance(outcome, Exception):
                if on_error is None:
                    raise outcome
                decoding.left = 0
                on_error(decoding, outcome)
        yield live
        live = [decoding for decoding in live if decoding.left > 0]


def _divide_time(outcomes: Sequence[StepRecord | Exception], seconds: float) -> None:
    """Divide the time of a joint step equally among the records of its sequences."""
    records = [record for record in outcomes if isinstance(record, StepRecord)]
    rows, names = max(1, len(records)), ("draft_s", "verify_s", "wait_s")
    shares = {name: sum(getattr(record, name) for record in records) / rows for name in names}
    shares["host_s"] = seconds / rows - shares["draft_s"] - shares["verify_s"]
    for record in records:
        vars(record).update(shares, rows=rows)  # `replace` takes a tenth of a plain step's time


def stream(
    target: CachedModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new: int,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> Iterator[DecodeTrace]:
    """Decode a prompt; yield the growing trace after each step (at least once, even if there is no
    step). Raises `ValueError` as `begin` does, and if `propose` returns anything but a tree."""
    decoding = begin(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose)
    for _ in together([decoding], 1):
        yield decoding.trace


def decode(
    target: CachedModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new: int,
    eos: Collection[int] = (),
    choose: TokenSelector = argmax,
) -> DecodeTrace:
    """Decode a prompt to its end; return the trace. Arguments and errors are those of `stream`."""
    *_, trace = stream(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose)
    return trace
