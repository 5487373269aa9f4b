"""Can this model score a token tree? Settled at load, by facts and a trial, not by a list.

A model qualifies if it keeps one key and value for each token and layer, and if a token's result
depends only on the tokens that its mask shows and on the position it is given. The trial scores a
sequence plainly and again among decoy siblings, any sliding window narrowed for the while; a model
that answers differently (ALiBi, an ignored mask, a window it does not keep) is refused. In half
precision rounding would hide a small difference, so a model that has room for it is tried with its
weights widened to float32 for the while.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ouroboros.engine.cache import LayerShape
from ouroboros.engine.masks import Layout, dense
from ouroboros.engine.model_info import ModelInfo, config_facts, tolerance
from ouroboros.engine.quantised import check_kernels
from ouroboros.tree import TokenTree

LENGTH, DECOYS = 24, 6  # tokens of the trial, and decoys at its root and half-way
TRIAL_WINDOW = 2  # so narrow that the trial's tokens reach beyond it
WIDENED_BYTES = 4 << 30
"""Weights that are larger in float32 are tried as they are."""


def check_tree_support(model: PreTrainedModel) -> ModelInfo:
    """Return the facts of a model; raise `ValueError` with the reason if it cannot score trees."""
    facts = config_facts(model)
    check_kernels(model)
    return replace(facts, layers=_trial(model, type(model).__name__, facts))


@torch.inference_mode()
def _trial(model: PreTrainedModel, name: str, facts: ModelInfo) -> list[LayerShape]:
    """Score a few tokens plainly, then among decoys; return the shapes that the cache held."""
    if facts.max_len < 4:
        raise ValueError(f"{name} has only {facts.max_len} positions; at least 4 are needed")
    chain, tree = _trial_tree(min(LENGTH, facts.max_len), facts.vocab_size)
    narrow = replace(facts, sliding_window=facts.sliding_window and TRIAL_WINDOW)
    positions, count = tree.depths().tolist(), len(chain)
    with _narrowed(model, facts.sliding_window):
        cache = DynamicCache()
        _logits(model, name, chain, range(count), None, cache, facts)
        shapes = _shapes(cache, name, count)
        with _widened(model) as dtype:
            mask = dense(Layout(0, [], tree), replace(narrow, dtype=dtype))
            plain = _logits(model, name, chain, range(count), None, DynamicCache(), facts)
            among = _logits(model, name, tree.tokens, positions, mask, DynamicCache(), facts)
    among = among[:, tree.path_to(len(tree) - 1)]
    spread = plain.std().clamp_min(1e-6)
    error = ((plain - among).abs().max() / spread).item()
    if not error < tolerance(dtype):
        raise ValueError(
            f"{name} does not follow an explicit attention mask with explicit positions (its "
            f"logits move by {error:.2g} standard deviations among masked tokens, as with ALiBi "
            "position biases or a sliding window that its masks do not keep): trees cannot be "
            "scored; choose a model with rotary or learned positions"
        )
    return shapes


def _trial_tree(length: int, vocab: int) -> tuple[list[int], TokenTree]:
    """Return the trial's tokens, and the tree whose last path they are: after decoys at the root,
    and after others half-way, so that slots are not positions."""
    chain = [(1 + place * place) % vocab for place in range(length)]
    tokens, parents, tip = [chain[0]], [-1], 0
    for place, token in enumerate(chain[1:], start=1):
        if place in (1, length // 2):
            tokens += [(7 + decoy) % vocab for decoy in range(DECOYS)]
            parents += [tip] * DECOYS
        tokens.append(token)
        parents.append(tip)
        tip = len(tokens) - 1
    return chain, TokenTree(tuple(tokens), tuple(parents))


@contextmanager
def _widened(model: PreTrainedModel) -> Iterator[torch.dtype]:
    """Give the model's half-precision weights as float32 for the while, where these are plain
    tensors (not quantised, not sharded, not elsewhere) and fit; yield the dtype it computes in."""
    half = [w for w in (*model.parameters(), *model.buffers()) if _half(w)]
    kept = [weight.data for weight in half]
    plain = all(type(w.data) is torch.Tensor and not w.is_meta for w in model.parameters())
    size = sum(4 * weight.numel() for weight in half)
    if not (half and plain and size <= min(WIDENED_BYTES, _free_bytes(model.device) // 2)):
        yield model.dtype
        return
    try:
        for weight, own in zip(half, kept, strict=True):
            weight.data = own.float()
        yield torch.float32
    finally:
        for weight, own in zip(half, kept, strict=True):
            weight.data = own


def _half(weight: torch.Tensor) -> bool:
    return weight.dtype in (torch.bfloat16, torch.float16)


def _free_bytes(device: torch.device) -> int:
    """Return the memory that is free where the model is; 0 where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return 0
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _narrowed(model: PreTrainedModel, window: int | None) -> Iterator[None]:
    """Narrow the sliding window to the trial's, in every config that the model's parts read."""
    found: list[Any] = [part.config for part in model.modules() if hasattr(part, "config")]
    configs = {id(config): config for config in found}
    wide = [c for c in configs.values() if window and getattr(c, "sliding_window", None) == window]
    for config in wide:
        config.sliding_window = TRIAL_WINDOW
    try:
        yield
    finally:
        for config in wide:
            config.sliding_window = window


def _logits(model, name: str, ids, positions, mask, cache, facts: ModelInfo) -> torch.Tensor:
    try:
        out = model(
            input_ids=torch.tensor([list(ids)], device=facts.device),
            position_ids=torch.tensor([list(positions)], device=facts.device),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=0,
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if "position_ids" not in inspect.signature(model.forward).parameters:
            reason = "its forward takes no position_ids, as where positions are ALiBi biases"
        failed = _plain_failure(model, ids, facts)
        if failed is not None:
            raise ValueError(
                f"{name} cannot be called at all in {facts.dtype} ({failed}): choose another dtype "
                'or, for experts, load it with experts_implementation="eager"'
            ) from error
        raise ValueError(
            f"{name} does not accept explicit masks, positions and a cache ({reason}): trees "
            "cannot be scored; choose a model with rotary or learned positions"
        ) from error
    return out.logits.double()


def _plain_failure(model, ids, facts: ModelInfo) -> str | None:
    """Return why a model fails even at a plain call of its tokens alone; None where it does not."""
    try:
        model(input_ids=torch.tensor([list(ids)], device=facts.device))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def _shapes(cache: DynamicCache, name: str, count: int) -> list[LayerShape]:
    shapes = []
    for index, layer in enumerate(cache.layers):
        keys = getattr(layer, "keys", None)
        if not isinstance(layer, CacheLayerMixin) or keys is None or keys.shape[-2] != count:
            raise ValueError(
                f"{name} keeps a recurrent or compressed state in layer {index}: it cannot be "
                "rolled back to an earlier token; choose an attention-only model"
            )
        values = layer.values
        assert values is not None
        shapes.append(
            LayerShape(keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype, keys.device)
        )
    if not shapes:
        raise ValueError(f"{name} keeps no key/value cache; choose an attention-only decoder")
    return shapes
