"""One unmodified Hugging Face causal LM, and the tokens whose keys and values it holds.

The only module with a batch dimension, an attention mask, a device or a cache.

Invariant: after `accept`, the cache holds every token of the sequence but the last. Prefill,
rollback, catch-up after a full acceptance and reuse of a shared prompt are one code path: whatever
of the sequence is not cached is fed before the tree, in the same call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ouroboros.attention import use_packed_attention
from ouroboros.cache import SlotCache
from ouroboros.support import examine
from ouroboros.tree import TokenTree

PREFILL_ALONE = 128  # a longer stretch is fed causally, without a dense mask, before the tree


class CachedModel:
    """A causal LM that scores token trees.

    `tokens` are exactly the tokens whose keys and values are cached. `calls` counts calls of
    `score`, and `busy_s` the seconds from a call's start to the arrival of its result; `predict`
    adds the part of them spent waiting for the result, `wait_s`, and the nodes `scored`.

    Raises `ValueError`, naming the reason, for architectures that cannot score a tree.
    """

    def __init__(
        self, model: PreTrainedModel, *, tokenizer=None, max_len: int | None = None
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        use_packed_attention(model)
        facts = examine(model)
        self.max_len = min(max_len or facts.max_len, facts.max_len)
        self.sliding_window = facts.sliding_window
        self.layer_types = facts.layer_types
        self.vocab_size = facts.vocab_size
        self.width = facts.vocab_size
        self.device = facts.device
        self.dtype = facts.dtype
        self.cache = SlotCache(facts.layers)
        self.tokens: list[int] = []
        self.calls = 0
        self.busy_s = 0.0
        self.wait_s = 0.0
        self.scored = 0
        self._tree: TokenTree | None = None
        self._fed: list[int] = []

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | None = None,
        max_len: int | None = None,
        **options,
    ) -> CachedModel:
        """Load a hub id or a folder. `options` (device_map, quantization_config, revision, ...) go
        to transformers' `from_pretrained` as they are.

        A model that is to be quantised is loaded onto its device, since it may not be moved later.
        """
        if options.get("quantization_config") is not None and device is not None:
            options = {"device_map": {"": device}, **options}
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path)
            model = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype, **options)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(
                f"cannot load {name_or_path!r}: {reason} (give a hub id you can reach, or a "
                "folder with config.json, weights and tokenizer)"
            ) from error
        except ImportError as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"cannot load {name_or_path!r}: {reason}") from error
        if device is not None and model.device.type != torch.device(device).type:
            model.to(device)  # type: ignore[arg-type]
        return cls(model, tokenizer=tokenizer, max_len=max_len)

    @torch.inference_mode()
    def score(
        self, tokens: Sequence[int], tree: TokenTree, rows: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return the logits that follow the asked nodes, [len(rows), width]; changes the cache.

        `tokens` is the whole sequence; its last token is the tree's root. `rows` defaults to
        `tree.asked`. Ids that this model does not know are fed as id 0: only a draft meets them.
        """
        started = time.perf_counter()
        tokens = list(tokens)
        if tokens[-1] != tree.tokens[0]:
            raise ValueError("the tree's root must be the last token of the sequence")
        reach = len(tokens) + int(tree.depths().max())
        if reach > self.max_len:
            raise ValueError(
                f"the sequence and its draft reach position {reach}, beyond the model's "
                f"{self.max_len}: shorten the prompt or max_new"
            )
        known = self._shared_prefix(tokens)
        missing = tokens[known:-1]
        self.tokens, self._tree = tokens[:known], None  # true even if the call below fails
        self.cache.set_length(known)
        self.cache.reserve(known + len(missing) + len(tree))
        if len(missing) > PREFILL_ALONE and not tree.is_chain:
            self._forward(missing, np.arange(known, known + len(missing)), None, [-1])
            self.cache.set_length(known + len(missing))
            known, missing = known + len(missing), []
        base = known + len(missing)
        positions = np.concatenate([np.arange(known, base), base + tree.depths()])
        mask = None if tree.is_chain else self._mask(known, len(missing), tree)
        asked = tree.asked if rows is None else rows
        logits = self._forward(
            [*missing, *tree.tokens], positions, mask, [len(missing) + row for row in asked]
        )
        self.tokens = tokens[:-1]
        self._tree, self._base = tree, base
        self.calls += 1
        self.busy_s += time.perf_counter() - started
        return logits[:, : self.width]

    @torch.inference_mode()
    def accept(self, path: Sequence[int]) -> None:
        """Keep the path (node indices, root first) of the tree last scored; forget the rest.

        Keeps all nodes but the path's last token's successor: the chosen token that follows it is
        the next root and not yet cached.
        """
        assert self._tree is not None and path[0] == 0, "score() comes first; paths start at 0"
        self.cache.keep([self._base + node for node in path], self._base)
        self.tokens = [*self.tokens, *(self._tree.tokens[node] for node in path)]
        self._tree = None

    def _shared_prefix(self, tokens: list[int]) -> int:
        """Return how many leading tokens of the sequence, its last left out, are cached already."""
        cached, limit = self.tokens, min(len(self.tokens), len(tokens) - 1)
        if cached[:limit] == tokens[:limit]:
            return limit
        pairs = zip(cached[:limit], tokens[:limit], strict=True)
        return next(i for i, (a, b) in enumerate(pairs) if a != b)

    def _forward(
        self, ids: list[int], positions: np.ndarray, mask, rows: Sequence[int]
    ) -> torch.Tensor:
        """One call of the model: [len(rows), vocab] logits at the given rows of `ids`."""
        if self.vocab_size < 1 << 62 and max(ids) >= self.vocab_size:
            ids = [i if i < self.vocab_size else 0 for i in ids]
        packed = torch.from_numpy(np.stack([np.array(ids), positions])).to(
            self.device, non_blocking=True
        )
        everything = len(rows) == len(ids)
        last = len(rows) == 1 and rows[0] in (-1, len(ids) - 1)
        keep = 0 if everything else 1 if last else torch.tensor(rows, device=self.device)
        out = self.model(
            input_ids=packed[:1],
            position_ids=packed[1:],
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        return out.logits[0]

    def _mask(self, known: int, missing: int, tree: TokenTree):
        """Return the additive mask [1, 1, queries, slots], or one by layer type."""
        n, queries = len(tree), missing + len(tree)
        base = known + missing
        seen = np.zeros((queries, known + queries), dtype=bool)
        seen[:, :known] = True
        if missing:
            seen[:missing, known:base] = np.tri(missing, dtype=bool)
            seen[missing:, known:base] = True
        seen[missing:, base : base + n] = tree.ancestors()
        if self.sliding_window is None:
            return self._additive(seen)
        slots = np.concatenate([np.arange(base), base + tree.depths()])
        near = slots[known:, None] - slots[None, :] < self.sliding_window
        if near.all():
            local = whole = self._additive(seen)
        else:
            whole, local = self._additive(seen), self._additive(seen & near)
        if self.layer_types is None:
            return local
        return {"full_attention": whole, "sliding_attention": local}

    def _additive(self, seen: np.ndarray) -> torch.Tensor:
        visible = torch.from_numpy(seen).to(self.device, non_blocking=True)
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~visible, torch.finfo(self.dtype).min)[None, None]
