"""A model that computes no logits, for replays and for timing the host's work without a target."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ouroboros.core.select import TokenSelector
from ouroboros.core.tree import TokenTree
from ouroboros.decode import Drafter, DrafterCapabilities
from ouroboros.engine.eager import fed_apart
from ouroboros.engine.sequence import CachedSequence, TreeModel

NO_LOGITS = torch.empty(0)
ANY = 1 << 30  # a context or a vocabulary of unknown size


class ScriptedModel(TreeModel):
    """Replaces a `CachedModel`. It counts calls and forward passes as the fused engine does if
    `engine` is "fused", else as the eager engine does. It computes a call's inputs, but no
    logits."""

    def __init__(
        self,
        max_len: int = ANY,
        *,
        vocab_size: int = ANY,
        tokenizer=None,
        engine: str = "eager",
    ) -> None:
        self.max_len, self.vocab_size, self.tokenizer = max_len, vocab_size, tokenizer
        self.engine = engine

    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Count the call; return no logits, because the selector looks up the tokens."""
        missing = 0 if sequence.calls else len(tokens) - 1
        sequence.calls += 1
        sequence.forwards += 2 if self.engine != "fused" and fed_apart(missing, tree) else 1
        sequence.caught_up += missing
        sequence.scored += len(tree)
        tree.depths()
        if not tree.is_chain:
            tree.ancestors(tree.logit_nodes[0])
        return NO_LOGITS


class Drafting:
    """Wraps a drafter so that its draft model selects tokens as in a live run: `reset` passes on
    `choose` instead of the replay's selector, which looks up the target's tokens."""

    def __init__(self, drafter: Drafter, choose: TokenSelector) -> None:
        self.drafter, self.choose = drafter, choose
        own = DrafterCapabilities.of(drafter)
        self.draft, self.ranks, self.observe_ranked = own.draft, own.ranks, own.observe_ranked
        self.propose, self.observe = drafter.propose, drafter.observe
        self.set_batch, self.observe_step = own.set_batch, own.observe_step

    @property
    def draft_sequence(self) -> CachedSequence | None:
        """The state of the wrapped drafter's draft model, if it has one."""
        return getattr(self.drafter, "draft_sequence", None)

    def reset(self, choose: TokenSelector) -> None:
        """Reset the wrapped drafter for a new prompt, with the selector of the live run."""
        self.drafter.reset(self.choose)
