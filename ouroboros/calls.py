"""Model calls that a step needs, made for one sequence (`alone`) or several (`jointly`).

A step is a generator of requests: it yields each call and is resumed with the answer. Its code does
not depend on how calls are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import TokenSelector, TopKRecorder
from ouroboros.tree import TokenTree


class Request(NamedTuple):
    """A model call that a step needs; the answer are its logits (see `CachedModel.score`)."""

    model: CachedModel
    sequence: CachedSequence
    tokens: Sequence[int]
    tree: TokenTree

    def alone(self) -> torch.Tensor:
        """Return the answer from a call for this sequence alone."""
        return self.model.score(*self[1:])

    def serve(self, calls: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Return the answers of requests of one model, by one call."""
        return self.model.score_together([call[1:] for call in calls])


class Roll(NamedTuple):
    """Standard decoding of `new` tokens that a step needs; the answer are the tokens (see
    `CachedModel.roll`)."""

    model: CachedModel
    sequence: CachedSequence
    tokens: Sequence[int]
    new: int
    choose: TokenSelector

    def alone(self) -> list[int]:
        """Return the answer from calls for this sequence alone."""
        return self.model.roll(*self[1:])

    def in_requests(self) -> Generator[Request, torch.Tensor, list[int]]:
        """Return the answer by one request per token."""
        model, sequence, tokens, new, choose = self
        text = list(tokens)
        for _ in range(new):
            root = TokenTree.chain(text[-1], ())
            text += yield from predict(model, sequence, text, root, choose)
            model.accept(sequence, [0])
        return text[len(tokens) :]


class Bid(NamedTuple):
    """A decision about a joint call that a step needs: `decide` takes the `offer` of each sequence
    that may use the call, and returns their answers. `drafting` says which model's call it is."""

    decide: Callable[[list[Any]], Sequence[Any]]
    offer: Any
    drafting: bool

    def alone(self) -> Any:
        """Return the answer for this sequence alone."""
        return self.decide([self.offer])[0]

    def serve(self, calls: Sequence[Any]) -> Sequence[Any]:
        """Return the answers of bids with one `decide`."""
        return self.decide([call.offer for call in calls])


T = TypeVar("T")
Steps = Generator[Request | Roll | Bid, Any, T]
"""A generator that yields requests, is resumed with their answers, and returns a result."""


def predict(
    model: CachedModel,
    sequence: CachedSequence,
    tokens: Sequence[int],
    tree: TokenTree,
    choose: TokenSelector | TopKRecorder,
) -> Generator[Request, torch.Tensor, list[int]]:
    """Return the token chosen after each node of a tree (-1 without logits), by one request and one
    device-to-host copy."""
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
    """Return the result of a generator of requests; make each call for this sequence alone."""
    answer: Any = None
    while True:
        try:
            answer = steps.send(answer).alone()
        except StopIteration as end:
            return end.value


def jointly(steps: Sequence[Steps[T]], target: CachedModel) -> list[T | Exception]:
    """Return the result of each generator, or the exception that ended it; make each call for all
    that need it.

    Draft models are called first, so that one call of the target serves all; bids on a call are
    decided before it.
    """
    generators = [_in_requests(step) for step in steps]
    results: list[Any] = [None] * len(steps)
    pending: dict[int, Request | Bid] = {}

    def resume(index: int, answer: Any) -> None:
        """Continue a generator with an answer, or with the exception of its call."""
        generator = generators[index]
        try:
            failed = isinstance(answer, Exception)
            pending[index] = generator.throw(answer) if failed else generator.send(answer)
            return
        except StopIteration as end:
            results[index] = end.value
        except Exception as error:
            results[index] = error
        pending.pop(index, None)

    def turn(index: int) -> int:
        """Return a call's place in the order of a step."""
        call = pending[index]
        if isinstance(call, Bid):
            return 0 if call.drafting else 2
        return 3 if call.model is target else 1

    for index in range(len(steps)):
        resume(index, None)
    while pending:
        first = min(pending, key=turn)
        now, key = turn(first), pending[first][0]  # the model, or the function that decides
        served = {each: c for each, c in pending.items() if turn(each) == now and c[0] is key}
        answers: Sequence[Any]
        try:
            answers = pending[first].serve(list(served.values()))
        except Exception as error:
            answers = [error] * len(served)
        for index, answer in zip(served, answers, strict=True):
            resume(index, answer)
    return results


def _in_requests(steps: Steps[T]) -> Generator[Request | Bid, Any, T]:
    """Return the result of a generator of requests; turn each `Roll` into requests."""
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
