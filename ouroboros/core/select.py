"""Token selection: the argmax of logits, or a sample drawn with shared noise.

A sample is the argmax of the logits, after temperature and filters (*warped*), plus Gumbel noise.
The noise is a function of seed, absolute position and token id, so every decoder samples the same
token at a position, whatever it drafted: the noise is *shared*. The draft model uses it too
(drafter-invariant speculative sampling, Daliri et al. 2024, https://arxiv.org/abs/2408.07978).

Invariant: the token chosen after a node depends on its logits, position and path, never on the rest
of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ouroboros.core.tree import TokenTree

NO_CHOICE = -1  # the token returned if there is no distribution to sample from


class Head(NamedTuple):
    """The ids that a trimmed output head scores (see `ouroboros.engine.head`).

    Logits of such a head have it as their attribute `head`: column j has the logit of id `ids[j]`.
    `ids` is ascending, followed by `NO_CHOICE`, at index -1 as well. `reach` is the largest id + 1.
    """

    ids: torch.Tensor
    reach: int

    @classmethod
    def of(cls, logits: torch.Tensor) -> Head | None:
        """Return the trimmed head of logits; None if their columns are the ids 0, 1, 2, ..."""
        return getattr(logits, "head", None)

    def below(self, width: int) -> Head:
        """Return the head without ids of `width` and more."""
        kept = self.ids[self.ids < width]  # `NO_CHOICE` stays
        return Head(kept, min(self.reach, width))


def token_ids(columns: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return the ids of columns of the logits; `NO_CHOICE` stays."""
    head = Head.of(logits)
    return columns if head is None else head.ids[columns]


def all_ids(logits: torch.Tensor) -> torch.Tensor:
    """Return logits whose columns are the ids 0, 1, 2, ...: -inf for ids that a trimmed head
    lacks."""
    if (head := Head.of(logits)) is None:
        return logits
    rows = logits.new_full((len(logits), head.reach), -torch.inf)
    return rows.index_copy_(1, head.ids[:-1], logits)


class TokenSelector(Protocol):
    """Chooses the next token after each node whose logits were computed (`tree.logit_nodes`)."""

    context_free: bool = False
    """Whether `scores` depends on logits and positions only, not on earlier tokens."""

    temperature: float = 0.0
    """Sampling temperature; 0 for greedy decoding. Drafters read it."""

    noise_seed: int | None = None
    """Seed of the shared Gumbel noise (`gumbel`); None without shared noise."""

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        """Return one token id per row of `logits`, [len(tree.logit_nodes), vocab], or with fewer
        columns if a draft's head is trimmed (`Head`)."""
        ...

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        """Return the best `count` tokens of each row, the chosen token first. Takes one
        device-to-host copy. Raises `TypeError` for a selector without a ranking."""
        raise TypeError(f"{type(self).__name__} ranks no tokens")

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Return scores in the shape of `logits`; the highest is chosen, excluded ids have -inf.
        Raises `TypeError` for a selector without scores."""
        raise TypeError(f"{type(self).__name__} has no scores")


class Ranked(NamedTuple):
    """The best tokens after each logit node, the chosen token first: arrays [rows, count].

    Tokens are ranked by `scores`, which include noise. `shares` are probabilities: the softmax of
    the warped logits, without noise. If the vocabulary is smaller than `count`, the rest of a row
    has id -1, score -inf and share 0.
    """

    ids: np.ndarray
    scores: np.ndarray
    shares: np.ndarray


class TopKRecorder(TokenSelector):
    """Selects like `choose`, and stores the best `count` tokens of the last call in `last`."""

    last: Ranked

    def __init__(self, choose: TokenSelector, count: int) -> None:
        self.choose = choose
        self.count = count
        self.temperature, self.noise_seed = choose.temperature, choose.noise_seed

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        self.last = self.choose.ranked(logits, tokens, tree, self.count)
        return self.last.ids[:, 0].tolist()


class LogitSelector(TokenSelector):
    """Chooses the id with the highest score: the warped logit, plus noise when sampling.

    When sampling, it returns `NO_CHOICE` if the highest score is not finite, that is, if a logit is
    NaN or infinite or every id is excluded.
    """

    context_free = True
    _key: Hashable = None
    _only_temperature: float | None = 1.0  # None if `warped` does more than divide by it

    def warped(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits after the warpers, [rows, vocab]; excluded ids are -inf."""
        return logits

    def _noise(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree
    ) -> tuple[torch.Tensor, ...]:
        """Return (noise,), Gumbel noise in the shape of the logits; () for greedy decoding."""
        return ()

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Return the warped logits plus noise."""
        return sum(self._noise(logits, tokens, tree), self.warped(logits))

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        if (table := self._ranked_on_cpu(logits, tokens, tree, 1, shares=False)) is not None:
            return table[:, 0, 0].astype(np.int64).tolist()
        noise = self._noise(logits, tokens, tree)

        def best(logits: torch.Tensor, *noise: torch.Tensor) -> torch.Tensor:
            scores = sum(noise, self.warped(logits))
            ids = _best(scores)
            if not noise:
                return ids
            highest = scores.gather(-1, ids[:, None])[:, 0]
            return torch.where(highest.isfinite(), ids, NO_CHOICE)

        chosen = _on_device(("best", self._key), best, logits, *noise)
        return token_ids(chosen, logits).tolist()

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        def ranking(logits: torch.Tensor, *noise: torch.Tensor) -> torch.Tensor:
            warped = self.warped(logits)
            return _ranking(sum(noise, warped), widened(warped).softmax(-1), count)

        if (table := self._ranked_on_cpu(logits, tokens, tree, count)) is None:
            noise = self._noise(logits, tokens, tree)
            ranks = _on_device(("ranking", self._key, count), ranking, logits, *noise)
            if Head.of(logits) is not None:
                ranks = torch.cat([token_ids(ranks[:, :1].long(), logits), ranks[:, 1:]], dim=1)
            table = ranks.cpu().numpy()  # the only device-to-host copy
            if noise:
                table[~np.isfinite(table[:, 1, 0]), 0, 0] = NO_CHOICE
        if (lacking := count - table.shape[-1]) > 0:
            none = np.tile([[-1.0], [-np.inf], [0.0]], (len(table), 1, lacking))
            table = np.concatenate([table, none], axis=-1)
        return Ranked(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])

    def _ranked_on_cpu(
        self,
        logits: torch.Tensor,
        tokens: Sequence[int],
        tree: TokenTree,
        count: int,
        *,
        shares: bool = True,
    ) -> np.ndarray | None:
        """Return ids, scores and `shares` of the best tokens by compiled code
        (`ouroboros.core.ranking`); None if it does not support these logits."""
        if logits.device.type != "cpu":
            return None
        from ouroboros.core.ranking import can_rank, rank  # numba takes half a second to import

        head, temperature = Head.of(logits), self._only_temperature
        if temperature is None:
            logits, temperature = self.warped(logits), 1.0
        if not can_rank(logits, count):
            return None
        how: dict = {"temperature": temperature, "shares": shares}
        sampled = self.noise_seed is not None
        if sampled:
            positions = len(tokens) + tree.depths()[list(tree.logit_nodes)]
            how |= {"seed": self.noise_seed, "positions": positions}
        ids = None if head is None else head.ids
        table = rank(logits, count, ids=ids, **how)
        if ids is not None:
            table[:, 0] = ids.numpy()[table[:, 0].astype(np.int64)]
        if sampled:
            table[~np.isfinite(table[:, 1, 0]), 0, 0] = NO_CHOICE
        return table


def _on_device(
    key: Hashable, compute: Callable, logits: torch.Tensor, *inputs: torch.Tensor
) -> torch.Tensor:
    """Return `compute(logits, *inputs)`. If the engine captures token selection as a CUDA graph,
    replay the graph for `key` (see `Eager.choosing`)."""
    choosing = getattr(logits, "choosing", None)
    return choosing(key, compute, logits, *inputs) if choosing else compute(logits, *inputs)


def widened(logits: torch.Tensor) -> torch.Tensor:
    """Convert logits to float32, as transformers does before processing them; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _best(scores: torch.Tensor) -> torch.Tensor:
    """Return the id of each row's highest score, [rows] int64; ties go to the lowest id.

    On a CPU NumPy is ten times as fast as torch; converting to float32 keeps the order.
    """
    if scores.device.type != "cpu":
        return scores.argmax(-1)
    return torch.from_numpy(widened(scores).detach().numpy().argmax(-1))


def _ranking(scores: torch.Tensor, shares: torch.Tensor, count: int) -> torch.Tensor:
    """Return ids, scores and shares of the `count` highest-scored tokens of each row, as float64
    [rows, 3, count] (or [rows, 3, vocab] if the vocabulary is smaller).

    `scores` and `shares` (probabilities) are [rows, vocab].
    """
    first = _best(scores)[:, None]
    ids = first
    if count > 1:
        ids = scores.topk(min(count, scores.shape[-1]), dim=-1).indices
        others = (ids == first).byte().argsort(dim=-1, stable=True)  # topk may order ties otherwise
        ids = torch.cat([first, ids.gather(-1, others)[:, :-1]], dim=-1)
    values = [ids.double(), scores.gather(-1, ids).double(), shares.gather(-1, ids).double()]
    return torch.stack(values, dim=1)


class Argmax(LogitSelector):
    """Greedy decoding: the most probable token; ties go to the lowest id."""


argmax = Argmax()


def combined_temperature(processors: Sequence[LogitsProcessor]) -> float:
    """Return the product of the temperatures of all temperature warpers; 1 without any."""
    return math.prod(p.temperature for p in processors if isinstance(p, TemperatureLogitsWarper))


KEPT_POSITIONS = 256  # a sampler caches the noise of about this many positions
NOISE_VALUES = 1 << 20  # computed together on a GPU


class Sampler(LogitSelector):
    """Sampling at a temperature, with noise shared by all decoders and the draft model.

    Tokens follow the softmax of the warped logits. `seed`, modulo 2**64, determines the noise;
    derive it from run, prompt and sample number. `warpers` are transformers' logits warpers, which
    must not depend on earlier tokens; by default they are built from the other arguments, in
    transformers' order. Raises `ValueError` for values outside their ranges.
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        warpers: Sequence[LogitsProcessor] | None = None,
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature {temperature} must be above 0; use argmax for greedy")
        if warpers is None:
            warpers = [
                *([TemperatureLogitsWarper(temperature)] if temperature != 1.0 else []),
                *([TopKLogitsWarper(top_k)] if top_k else []),
                *([TopPLogitsWarper(top_p)] if top_p != 1.0 else []),
                *([MinPLogitsWarper(min_p)] if min_p else []),
            ]
        self.seed: Final = (int(seed) + (1 << 63)) % (1 << 64) - (1 << 63)  # an int64
        self.warpers: Final = LogitsProcessorList(warpers)
        self.temperature, self.noise_seed = combined_temperature(warpers), self.seed
        self._key = tuple((type(w), *sorted(vars(w).items())) for w in warpers)
        plain = all(type(w) is TemperatureLogitsWarper for w in warpers) and len(warpers) < 2
        self._only_temperature = self.temperature if plain else None
        self._rows: dict[int, torch.Tensor] = {}

    def warped(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits after the warpers, [rows, vocab], in float32 as in transformers
        (float64 stays float64); excluded ids are -inf."""
        return self.warpers(None, widened(logits))  # type: ignore[arg-type]

    def noise(self, position: int, vocab: int, device: torch.device) -> torch.Tensor:
        """Return the Gumbel noise of an absolute position, [vocab] float32.

        On a GPU, noise is computed for several positions at a time, because a hundred small kernel
        launches per position would be slow.
        """
        row = self._rows.get(position)
        if row is None or len(row) < vocab or row.device != device:
            if len(self._rows) > KEPT_POSITIONS:
                self._rows.clear()
            together = min(16, max(1, NOISE_VALUES // vocab)) if device.type == "cuda" else 1
            ahead = range(position, position + together)
            rows = gumbel(self.seed, ahead, vocab, device)
            self._rows.update(zip(ahead, rows, strict=True))
            row = rows[0]
        return row[:vocab]

    def _noise(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree
    ) -> tuple[torch.Tensor, ...]:
        base, depths = len(tokens), tree.depths()
        head, device = Head.of(logits), logits.device
        vocab = logits.shape[-1] if head is None else head.reach
        rows = [self.noise(base + int(depths[node]), vocab, device) for node in tree.logit_nodes]
        if head is not None:
            rows = [row[head.ids[:-1]] for row in rows]
        return (torch.stack(rows),)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Apply splitmix64's finaliser (Steele et al. 2014) to int64 lanes, with logical shifts."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def gumbel(
    seed: int, positions: Sequence[int], vocab: int, device: torch.device | str
) -> torch.Tensor:
    """Return standard Gumbel noise for ids 0 ... vocab - 1 at each position, [positions, vocab]
    float32.

    Noise is a counter-based hash of (seed, position, id), independent of the vocabulary size. It is
    bitwise identical on CPU and GPU, because the logarithm uses only correctly rounded operations.
    """
    if torch.device(device).type == "cpu":
        from ouroboros.core import noise  # numba takes half a second to import

        if noise.COMPILED:  # 17 times as fast
            return torch.from_numpy(noise.noise_rows(seed, positions, vocab))
    words = torch.tensor([[seed, position] for position in positions], dtype=torch.int64)
    keys = _mix(_mix(words[:, :1] - 0x61C8864680B583EB) + words[:, 1:])
    ids = torch.arange(1, vocab + 1, dtype=torch.int64, device=device)
    if torch.device(device).type == "cuda":  # a copy from pageable memory would block
        keys = keys.pin_memory()
    bits = _mix(keys.to(device, non_blocking=True) + ids * -0x61C8864680B583EB)
    uniform = (((bits >> 12) & 0xFFFFFFFFFFFFF).double() + 0.5) * 2.0**-52
    return (-_log(-_log(uniform))).float()


def _log(x: torch.Tensor) -> torch.Tensor:
    """Return the natural logarithm in float64, accurate to 1e-14, using only +, -, x and /."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa = torch.where(low, mantissa * 2, mantissa)
    exponent = exponent.double() - low.double()
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = torch.full_like(s, 1 / 21)
    for odd in range(19, 0, -2):
        series = series * square + 1 / odd
    return 2 * s * series + exponent * 0.6931471805599453
