"""Do engines, devices and loops agree? What must be seen on a new device before anything is timed.

Each function compares two ways of computing the same, on the models and devices given, and returns
a `Check` with its figures. Invariant: a check that says passed has compared something.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ouroboros.costs.timing import random_tree
from ouroboros.decode import RootOnly, decode
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import TokenSelector, gumbel
from ouroboros.tree import TokenTree

LOGIT_TOLERANCE = 1e-3  # of float32 logits by two engines
ERROR_RATIO = 1.25  # rounding errors of two engines in half precision, root mean squares


@dataclass(frozen=True)
class Check:
    """One comparison: whether it passed, and the figures that it rests on."""

    name: str
    passed: bool
    figures: Mapping[str, object] = field(default_factory=dict)
    note: str = ""


def noise_agrees(device: torch.device, *, vocab: int = 64_000, positions: int = 50) -> Check:
    """Hold the shared noise of sampling on a device against the CPU's, bit for bit."""
    unequal = sum(
        not torch.equal(gumbel(3, at, vocab, "cpu"), gumbel(3, at, vocab, device).cpu())
        for at in range(positions)
    )
    return Check("noise", unequal == 0, {"positions": positions, "unequal": unequal})


@dataclass
class _Difference:
    """Sums over rows of logits: how far two engines are apart, and each from an exact model."""

    worst: float = 0.0
    rows: int = 0
    flips: int = 0
    squares: dict[str, float] = field(default_factory=lambda: {"first": 0.0, "second": 0.0})

    def add(
        self, first: torch.Tensor, second: torch.Tensor, exact: torch.Tensor | None = None
    ) -> None:
        """Take in some rows, [rows, vocab] each."""
        first, second = first.double(), second.double()
        self.worst = max(self.worst, float((first - second).abs().max()))
        self.rows += len(first)
        self.flips += int((first.argmax(-1) != second.argmax(-1)).sum())
        if exact is not None:
            for name, logits in (("first", first), ("second", second)):
                self.squares[name] += float((logits - exact.double()).square().mean(-1).sum())

    def error(self, name: str) -> float:
        """Root mean square distance from the exact model's logits."""
        return (self.squares[name] / max(1, self.rows)) ** 0.5


def engines_agree(
    name: str,
    eager: CachedModel,
    static: CachedModel,
    *,
    contexts: Sequence[int],
    nodes: Sequence[int],
    exact: CachedModel | None = None,
    seed: int = 0,
) -> Check:
    """Compare logits of random trees of so many `nodes` after so many tokens of `contexts`, and
    those of a token after a random path of the tree was kept.

    Without `exact` (float32, float64) every argmax must be equal and no logit further off than
    `LOGIT_TOLERANCE`. With it (half precision), the same weights in float32, `static` may be
    further from it than `eager` by a factor of `ERROR_RATIO`, in the root mean square.
    """
    draw, found = random.Random(seed), _Difference()
    models = [model for model in (eager, static, exact) if model is not None]
    text = [draw.randrange(min(1000, eager.vocab_size)) for _ in range(max(contexts))]
    sequences = []
    for model in models:
        model.empty()
        sequences.append(model.new_sequence())
    for context in sorted(contexts):
        tokens = text[:context]
        for size in nodes:
            shape = random_tree(size, draw=draw)
            tree = TokenTree((tokens[-1], *shape.tokens[1:]), shape.parents)
            _compare(found, models, sequences, tokens, tree)
            path = tree.path_to(draw.randrange(len(tree)))
            for model, sequence in zip(models, sequences, strict=True):
                model.accept(sequence, path)
            longer = [*tokens, *(tree.tokens[node] for node in path[1:]), text[0]]
            _compare(found, models, sequences, longer, TokenTree((text[0],), (-1,)))
    return _judged(name, found, exact is not None)


def rolls_agree(
    name: str,
    model: CachedModel,
    prompts: Sequence[Sequence[int]],
    *,
    count: int,
    choose: TokenSelector,
) -> Check:
    """Hold `roll` against plain decoding, a call and a wait for each token, on the same model."""
    differ = 0
    for prompt in prompts:
        model.empty()
        plain = decode(model, RootOnly(), list(prompt), max_new=count, choose=choose).new_tokens
        model.empty()
        differ += model.roll(model.new_sequence(), list(prompt), count, choose) != plain
    figures = {"prompts": len(prompts), "tokens": count, "differ": differ}
    return Check(name, differ == 0 and len(prompts) > 0, figures)


def _compare(
    found: _Difference,
    models: Sequence[CachedModel],
    sequences: Sequence[CachedSequence],
    tokens: list[int],
    tree: TokenTree,
) -> None:
    pairs = zip(models, sequences, strict=True)
    rows = [model.score(sequence, tokens, tree).clone() for model, sequence in pairs]
    found.add(*rows)


def _judged(name: str, found: _Difference, half: bool) -> Check:
    figures: dict[str, object] = {
        "rows": found.rows,
        "max_logit_difference": found.worst,
        "argmax_differs": found.flips,
    }
    if not half:
        passed = found.flips == 0 and found.worst <= LOGIT_TOLERANCE
        return Check(name, passed and found.rows > 0, figures)
    eager, static = found.error("first"), found.error("second")
    figures |= {"eager_rms_error": eager, "static_rms_error": static}
    return Check(name, found.rows > 0 and static <= ERROR_RATIO * eager, figures)
