"""One unmodified Hugging Face causal LM, and the tokens whose keys and values it holds.

The only module with a batch dimension, an attention mask, a device or a cache.

Invariant: after `accept`, the cache holds every token of the sequence but the last. Prefill,
rollback, catch-up after a full acceptance and reuse of a shared prompt are one code path: whatever
of the sequence is not cached is fed before the tree, in the same call. A tree may be scored in
parts: while nothing was accepted, its first nodes stay cached for later ones that hang below them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ouroboros.engine.attention import use_packed_attention
from ouroboros.engine.cache import SlotCache
from ouroboros.engine.eager import MOST_HELD
from ouroboros.engine.loading import why_not_loaded
from ouroboros.engine.prepack import pack
from ouroboros.engine.selection import EngineName, select
from ouroboros.engine.support import check_tree_support
from ouroboros.engine.tokenizer import check_round_trip
from ouroboros.select import TokenSelector
from ouroboros.tree import ROOT, TokenTree


class CachedModel:
    """A causal LM that scores token trees.

    `tokens` are exactly the tokens whose keys and values are cached, but for a tree's. `calls`
    counts calls of `score`, `forwards` those of the model itself (a long stretch of text goes in by
    forwards of its own), `scored` the nodes of trees that were fed and `caught_up` the tokens of
    sequences that were, prompts included. `busy_s` are the seconds from a call's start to the
    arrival of its result; `predict` adds the part of them spent waiting for it, `wait_s`.

    `engine` "static" pads calls to fixed shapes and replays them as CUDA graphs, "eager" calls the
    model as it is; "auto" is static on a GPU where the model can be captured, else eager, and
    `engine_reason` says why.

    Raises `ValueError`, naming the reason, for architectures that cannot score a tree.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer=None,
        max_len: int | None = None,
        engine: EngineName = "auto",
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        use_packed_attention(model)
        facts = check_tree_support(model)
        self.max_len = min(max_len or facts.max_len, facts.max_len)
        self.sliding_window = facts.sliding_window
        self.layer_types = facts.layer_types
        self.vocab_size = facts.vocab_size
        self.width = facts.vocab_size
        self.device = facts.device
        self.dtype = facts.dtype
        self.cache = SlotCache(facts.layers)
        self.engine, self.engine_reason = select(engine, self.model, facts, self.cache)
        self.tokens: list[int] = []
        self.calls = 0
        self.busy_s = 0.0
        self.wait_s = 0.0
        self.scored = 0
        self.caught_up = 0
        self._tree: TokenTree | None = None
        self._base = 0

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | None = None,
        max_len: int | None = None,
        engine: EngineName = "auto",
        **options,
    ) -> CachedModel:
        """Load a hub id or a folder. `options` (device_map, quantization_config, revision, ...) go
        to transformers' `from_pretrained` as they are.

        A model that is to be quantised is loaded onto its device, since it may not be moved later.
        Raises `ValueError` for what cannot be loaded, or whose tokenizer loses characters.
        """
        if options.get("quantization_config") is not None and device is not None:
            options = {"device_map": {"": device}, **options}
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path)
            model = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype, **options)
        except (OSError, ValueError, ImportError) as error:
            reason = why_not_loaded(name_or_path, error)
            raise ValueError(f"cannot load {name_or_path!r}: {reason}") from error
        check_round_trip(tokenizer, name_or_path)
        if device is not None and model.device.type != torch.device(device).type:
            model.to(device)  # type: ignore[arg-type]
        pack(model)
        return cls(model, tokenizer=tokenizer, max_len=max_len, engine=engine)

    @property
    def forwards(self) -> int:
        """How often the model itself was called."""
        return self.engine.forwards

    @torch.inference_mode()
    def score(self, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Return the logits that follow the asked nodes, [len(tree.logit_nodes), width]; changes the
        cache.

        They live until the next call, and say by which way a choice from them is made
        (`Engine.choosing`). `tokens` is the whole sequence; its last token is the tree's
        root. Ids that this model does not know are fed as id 0: only a draft meets them.

        A tree that has grown since it was scored (its first nodes are those of the last call, on
        the same tokens, and nothing was accepted) goes on where it was: nodes before the first one
        that is asked are not fed again, so ask for the new ones, by `tree.with_logits_at(new)`.
        """
        started = time.perf_counter()
        self.check(tokens, tree)
        known = self._shared_prefix(tokens)
        missing = list(tokens[known:-1])
        held = 0 if missing else self._held(known, tree)
        del self.tokens[known:]  # what is cached even if the call below fails
        self._tree = None
        self.cache.set_length(known + held)
        logits = self.engine.run(known, missing, tree, held=held)
        self.tokens += missing
        self._tree, self._base = tree, len(tokens) - 1
        self.calls += 1
        self.scored += len(tree) - held
        self.caught_up += len(missing)
        self.busy_s += time.perf_counter() - started
        rows = logits[:, : self.width]
        rows.choosing = self.engine.choosing  # type: ignore[attr-defined]
        return rows

    def check(self, tokens: Sequence[int], tree: TokenTree) -> None:
        """Raise `ValueError` for a tree that is not rooted at the last token, or beyond reach."""
        if tokens[-1] != tree.tokens[0]:
            raise ValueError(
                f"the tree's root is {tree.tokens[0]}, the sequence's last token {tokens[-1]}: "
                "root the tree at tokens[-1]"
            )
        reach = len(tokens) + int(tree.depths().max())
        if reach > self.max_len:
            raise ValueError(
                f"the sequence and its draft reach position {reach}, beyond the model's "
                f"{self.max_len}: shorten the prompt or max_new"
            )

    @torch.inference_mode()
    def accept(self, path: Sequence[int]) -> None:
        """Keep the path (node indices, root first) of the tree last scored; forget the rest.

        Keeps all nodes but the path's last token's successor: the chosen token that follows it is
        the next root and not yet cached.
        """
        assert self._tree is not None and path[0] == 0, "score() comes first; paths start at 0"
        self.cache.keep([self._base + node for node in path], self._base)
        self.tokens += [self._tree.tokens[node] for node in path]
        self._tree = None

    @torch.inference_mode()
    def roll(self, tokens: Sequence[int], count: int, choose: TokenSelector) -> list[int]:
        """Return the `count` tokens that plain decoding puts after `tokens`: one call each, but one
        wait for them all. Changes the cache, which then lacks the last of them.

        `choose` must be blind to the text (`TokenSelector.blind`), so that a token's choice can be fed on
        the device before the host knows it.
        """
        length = len(tokens)
        logits = self.score(tokens, TokenTree.chain(tokens[-1], ()))
        started = time.perf_counter()
        self.accept([0])
        drawn = [choose.scores(logits, tokens, ROOT).argmax(-1)]
        for at in range(length, length + count - 1):
            logits = self.engine.follow(at, drawn[-1])[:, : self.width]
            self.cache.set_length(at + 1)
            drawn.append(choose.scores(logits, range(at + 1), ROOT).argmax(-1))
        handed_over = time.perf_counter()
        new = torch.cat(drawn).tolist()
        self.tokens += new[:-1]
        ended = time.perf_counter()
        self.calls += count - 1
        self.scored += count - 1
        self.busy_s += ended - started
        self.wait_s += ended - handed_over
        return new

    @torch.inference_mode()
    def prepare(self, context: int) -> None:
        """Do beforehand, from an empty cache, what calls on up to `context` tokens need once."""
        self.tokens, self._tree = [], None
        self.cache.set_length(0)
        self.engine.prepare(min(context, self.max_len))

    def _held(self, base: int, tree: TokenTree) -> int:
        """Return how many of the first nodes lie in the cache, rooted at slot `base`, and need no
        second call."""
        last = self._tree
        if last is None or base != self._base:
            return 0
        limit = min(len(last), tree.logit_nodes[0], MOST_HELD)
        for node in range(limit):
            if tree.tokens[node] != last.tokens[node] or tree.parents[node] != last.parents[node]:
                return node
        return limit

    def _shared_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of the sequence, its last left out, are cached already."""
        cached, limit = self.tokens, min(len(self.tokens), len(tokens) - 1)
        start = list(tokens[:limit])
        if (cached if limit == len(cached) else cached[:limit]) == start:
            return limit
        pairs = zip(cached, start, strict=False)
        return next(i for i, (a, b) in enumerate(pairs) if a != b)
