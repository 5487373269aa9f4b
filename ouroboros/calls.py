"""Make the model calls of decoding steps, for one sequence (`alone`) or several (`jointly`).

A step is a generator: it yields each call that it needs as a request, and is resumed with the
result. So the same code decodes one sequence or a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import torch

from ouroboros.core.select import NO_CHOICE, TokenSelector, TopKRecorder
from ouroboros.core.tree import TokenTree
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence


class Request(NamedTuple):
    """A step's request to score a tree; the result is the logits (see `CachedModel.score`)."""

    model: CachedModel
    sequence: CachedSequence
    tokens: Sequence[int]
    tree: TokenTree

    def alone(self) -> torch.Tensor:
        """Make the call for this sequence alone; return the logits."""
        return self.model.score(self.sequence, self.tokens, self.tree)

    def serve(self, calls: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Make one joint call for `calls`, which are requests to the same model, `self` included;
        return the logits of each."""
        return self.model.score_all([call[1:] for call in calls])


class Roll(NamedTuple):
    """A step's request to generate `new` tokens by standard decoding; the result is a list of these
    tokens (see `CachedModel.roll`)."""

    model: CachedModel
    sequence: CachedSequence
    tokens: Sequence[int]
    new: int
    choose: TokenSelector | TopKRecorder

    def alone(self) -> list[int]:
        """Make the calls for this sequence alone; return the tokens."""
        return self.model.roll(*self[1:])

    def in_requests(
        self, enough: Callable[[], bool] = lambda: False
    ) -> Generator[Request, torch.Tensor, list[int]]:
        """Generate the tokens one by one, each with a `Request`; return them. Stop after a token if
        `enough()` is true, and before a token for which there is no distribution (`NO_CHOICE`)."""
        model, sequence, tokens, new, choose = self
        text = list(tokens)
        for _ in range(new):
            root = TokenTree.chain(text[-1], ())
            chosen = yield from predict(model, sequence, text, root, choose)
            model.accept(sequence, [0])
            if chosen[0] == NO_CHOICE:
                break
            text += chosen
            if enough():
                break
        return text[len(tokens) :]


class Bid(NamedTuple):
    """A step's request for a decision about all sequences of a batch. `decide` takes the list of
    all sequences' `offer`s and returns one result for each. `drafting`: whether the decision
    concerns a draft call (False: the target call)."""

    decide: Callable[[list[Any]], Sequence[Any]]
    offer: Any
    drafting: bool

    def alone(self) -> Any:
        """Return the decision for this sequence alone, as if it were the whole batch."""
        return self.decide([self.offer])[0]

    def serve(self, calls: Sequence[Any]) -> Sequence[Any]:
        """Return the decisions for `calls`, the bids of all sequences, from one call of
        `decide`."""
        return self.decide([call.offer for call in calls])


T = TypeVar("T")
Steps = Generator[Request | Roll | Bid, Any, T]
"""A generator that yields requests, is resumed with their results, and returns a value."""


def predict(
    model: CachedModel,
    sequence: CachedSequence,
    tokens: Sequence[int],
    tree: TokenTree,
    choose: TokenSelector | TopKRecorder,
) -> Generator[Request, torch.Tensor, list[int]]:
    """Score a tree; return the token that `choose` selects after each node (-1 for nodes without
    logits). Takes one model call, which `alone` or `jointly` makes, and one copy to the host."""
    logits = yield Request(model, sequence, tokens, tree)
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


def alone(steps: Steps[T]) -> T:
    """Run a step for one sequence: make its model calls one by one, and return its value."""
    answer: Any = None
    while True:
        try:
            answer = steps.send(answer).alone()
        except StopIteration as end:
            return end.value


def jointly(steps: Sequence[Steps[T]], target: CachedModel) -> list[T | Exception]:
    """Run the steps of several sequences; those that wait for the same model share a joint call.
    Return the value of each step, or the exception that ended it.

    Draft calls are made first, so that all sequences reach the target together and share one target
    call. Bids about a call are decided before it.
    """
    generators = [_in_requests(step) for step in steps]
    results: list[Any] = [None] * len(steps)
    pending: dict[tuple[int, Any], dict[int, Request | Bid]] = {}

    def resume(index: int, answer: Any) -> None:
        """Resume a step with the result of its call, or raise the call's exception in it. Add its
        next request to `pending`, by key (priority, 0 first; model or `decide` function)."""
        generator = generators[index]
        try:
            failed = isinstance(answer, Exception)
            call = generator.throw(answer) if failed else generator.send(answer)
        except StopIteration as end:
            results[index] = end.value
        except Exception as error:
            results[index] = error
        else:
            if isinstance(call, Bid):
                turn = 0 if call.drafting else 2
            else:
                turn = 3 if call.model is target else 1
            pending.setdefault((turn, call[0]), {})[index] = call

    for index in range(len(steps)):
        resume(index, None)
    while pending:
        served = pending.pop(min(pending, key=itemgetter(0)))
        order = sorted(served)
        answers: Sequence[Any]
        try:
            answers = served[order[0]].serve([served[index] for index in order])
        except Exception as error:
            answers = [error] * len(served)
        for index, answer in zip(order, answers, strict=True):
            resume(index, answer)
    return results


def _in_requests(steps: Steps[T]) -> Generator[Request | Bid, Any, T]:
    """Wrap a step so that each `Roll` becomes one `Request` per token."""
    answer: Any = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(wanted, Roll):
            answer = yield from wanted.in_requests()
        else:
            answer = yield wanted
