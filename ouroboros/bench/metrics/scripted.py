"""Two models that compute nothing: what remains of a step is the host's own work.

Each says, after any node, the token that a text has at that position, whatever the path; the
draft's text differs from the target's at some positions. So trees, phrases, acceptance and draft
calls are of a usual kind, and the same on every machine. Invariant: the time that the scripts
themselves take is noted (`spent_s`), so that it can be left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ouroboros.decode import Drafter, DrafterCapabilities, stream
from ouroboros.engine.eager import fed_apart
from ouroboros.select import Ranked, TokenSelector
from ouroboros.tree import TokenTree

NO_LOGITS = torch.empty(0)
ANY = 1 << 30  # a context or a vocabulary of unknown size


class ScriptedModel:
    """Stands where a `CachedModel` stands: it counts calls and forwards, as eager calls make them,
    and asks of a tree what a model must (depths, and ancestors where it branches)."""

    def __init__(self, max_len: int = ANY, *, vocab_size: int = ANY, tokenizer=None) -> None:
        self.max_len, self.vocab_size, self.tokenizer = max_len, vocab_size, tokenizer
        self.tokens: list[int] = []
        self.calls = self.forwards = self.scored = self.caught_up = 0
        self.busy_s = self.wait_s = 0.0

    def score(self, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Return no logits: the choice is in a script."""
        missing = 0 if self.calls else len(tokens) - 1
        self.calls += 1
        self.forwards += 2 if fed_apart(missing, tree) else 1
        self.caught_up += missing
        self.scored += len(tree)
        tree.depths()
        if not tree.is_chain:
            tree.ancestors()
        return NO_LOGITS

    def accept(self, path: Sequence[int]) -> None:
        """Keep nothing."""


class Script(TokenSelector):
    """A choice by position alone: `text[position]`, with the probability `shares[position]`.

    The runners-up are the tokens after the chosen one in the order of ids, each half as probable as
    the one before; the first of them has what the choice leaves.
    """

    def __init__(self, text: Sequence[int], shares: Sequence[float] | None = None) -> None:
        self.text = list(text)
        self.shares = [1.0] * len(self.text) if shares is None else list(shares)
        self.spent_s = 0.0

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        started = time.perf_counter()
        base, depths = len(tokens), tree.depths()
        chosen = [self.text[base + depths[node]] for node in tree.logit_nodes]
        self.spent_s += time.perf_counter() - started
        return chosen

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        started = time.perf_counter()
        base, depths = len(tokens), tree.depths()
        places = [base + int(depths[node]) for node in tree.logit_nodes]
        ids = np.array([[self.text[p] + rank for rank in range(count)] for p in places])
        first = np.array([[self.shares[p]] for p in places])
        shares = np.hstack([first, (1 - first) * 0.5 ** np.arange(count - 1)])[:, :count]
        found = Ranked(ids, np.log(np.maximum(shares, 1e-30)), shares)
        self.spent_s += time.perf_counter() - started
        return found

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        raise NotImplementedError("a script knows no scores")


def draft_script(text: Sequence[int], agreement: float, seed: int = 0) -> Script:
    """Return a draft's script: it says `text`'s token in a share `agreement` of the positions,
    and is surer of those."""
    draw = random.Random(seed)
    tokens, shares = [], []
    for token in text:
        right = draw.random() < agreement
        tokens.append(token if right else token + 1)
        shares.append(draw.uniform(0.6, 1.0) if right else draw.uniform(0.2, 0.8))
    return Script(tokens, shares)


class Drafting:
    """A drafter whose draft model chooses by a rule of its own, whatever the target's is."""

    def __init__(self, drafter: Drafter, choose: TokenSelector) -> None:
        self.drafter, self.choose = drafter, choose
        own = DrafterCapabilities.of(drafter)
        self.draft, self.ranks, self.observe_ranked = own.draft, own.ranks, own.observe_ranked
        self.propose = drafter.propose
        self.observe = drafter.observe

    def reset(self, choose: TokenSelector) -> None:
        """Begin a text; the draft chooses by its own rule."""
        self.drafter.reset(self.choose)


def host_steps(
    drafter: Drafter, script: Script, drafting: Script, *, prompt: int, max_new: int
) -> Iterator[tuple[float, int, int]]:
    """Decode a script from its first `prompt` tokens on; yield, for each step after the first, the
    host's seconds, the draft calls and the new tokens.

    The first step takes in the whole prompt, once, and is left out.
    """
    driven = Drafting(drafter, drafting)
    steps = stream(
        ScriptedModel(),  # type: ignore[arg-type]
        driven,
        script.text[:prompt],
        max_new=max_new,
        choose=script,
    )
    started, spent = time.perf_counter(), script.spent_s + drafting.spent_s
    for trace in steps:
        now, found = time.perf_counter(), script.spent_s + drafting.spent_s
        if len(trace.steps) > 1:
            last = trace.steps[-1]
            yield now - started - (found - spent), last.draft_calls, last.new
        started, spent = time.perf_counter(), script.spent_s + drafting.spent_s
