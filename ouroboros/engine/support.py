"""Can this model score a token tree? Settled at load, by facts and a trial, not by a list.

A model qualifies if it keeps one key and value for each token and layer, and if a token's result
depends only on the tokens that its mask shows and on the position it is given. The trial scores a
short sequence plainly and again among decoy siblings, any sliding window narrowed for the while; a
model that answers differently (ALiBi, an ignored mask, a window it does not keep) is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ouroboros.engine.cache import LayerShape
from ouroboros.engine.quantised import check_kernels

DECOYS = 6
TRIAL_WINDOW = 2  # so narrow that the trial's four tokens reach beyond it


@dataclass(frozen=True)
class Facts:
    """What `CachedModel` needs to know of a model. `max_len` is the number of usable positions;
    `layer_types` is None unless full and sliding layers are mixed."""

    max_len: int
    sliding_window: int | None
    layer_types: tuple[str, ...] | None
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    layers: list[LayerShape]


def examine(model: PreTrainedModel) -> Facts:
    """Return the facts of a model; raise `ValueError` with the reason if it cannot score trees."""
    config = model.config.get_text_config()
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; a decoder-only causal LM is needed")
    if getattr(config, "alibi", False):
        raise ValueError(
            f"{name} is configured with alibi=True: its position biases follow the order of slots, "
            "not a tree's positions; choose a model with rotary or learned positions"
        )
    check_kernels(model)
    max_len = _position_limit(config)
    window, types = _sliding(config, name, max_len)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding.weight, torch.Tensor)
    device, dtype = embedding.weight.device, model.dtype
    facts = Facts(max_len, window, types, len(embedding.weight), device, dtype, [])
    return Facts(**{**facts.__dict__, "layers": _trial(model, name, facts)})


def tolerance(dtype: torch.dtype) -> float:
    """Return by how many standard deviations logits may differ between two ways of one call."""
    return 2e-3 if dtype in (torch.float32, torch.float64) else 0.25


def _position_limit(config) -> int:
    limits = [getattr(config, key, None) for key in ("max_position_embeddings", "n_positions")]
    limit = next((value for value in limits if value and value > 0), 1 << 30)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {rope.get("rope_type"), rope.get("type")} if isinstance(rope, dict) else set()
    if "longrope" in kinds:
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        return min(limit, original or limit)
    return limit


def _sliding(config, name: str, max_len: int) -> tuple[int | None, tuple[str, ...] | None]:
    """Return the window and, if layers of both kinds are mixed, their types."""
    types = tuple(getattr(config, "layer_types", None) or ())
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(
            f"{name} has layers of type {', '.join(sorted(unknown))}: their state cannot be rolled "
            "back to an earlier token or masked by a tree; choose a model whose layers are all "
            "full or sliding attention"
        )
    window = getattr(config, "sliding_window", None)
    for key, value in config.to_dict().items():
        local = key.endswith(("window", "window_size")) and isinstance(value, int)
        if local and 1 < value < max_len and value != window:
            raise ValueError(
                f"{name} limits attention by {key}={value}, a window of its own that a tree's mask "
                "cannot follow; choose a model with full or sliding attention"
            )
    if types and "sliding_attention" not in types:
        window = None
    if not window or window >= max_len:
        return None, None
    return window, types if len(set(types)) > 1 else None


@torch.inference_mode()
def _trial(model: PreTrainedModel, name: str, facts: Facts) -> list[LayerShape]:
    """Score four tokens plainly, then among decoys; return the shapes that the cache held."""
    if facts.max_len < 4:
        raise ValueError(f"{name} has only {facts.max_len} positions; at least 4 are needed")
    vocab = facts.vocab_size
    chain = [1 % vocab, 2 % vocab, 3 % vocab, 5 % vocab]
    decoys = [(7 + i) % vocab for i in range(DECOYS)]
    ids = [chain[0], *decoys, *chain[1:]]
    positions = [0, *[1] * DECOYS, 1, 2, 3]
    real = [0, *range(1 + DECOYS, len(ids))]
    mask = _trial_mask(facts, positions, real)
    plain_cache = DynamicCache()
    with _narrowed(model, facts.sliding_window):
        plain = _logits(model, name, chain, range(4), None, plain_cache, facts)
        shapes = _shapes(plain_cache, name)
        among = _logits(model, name, ids, positions, mask, DynamicCache(), facts)[:, real]
    spread = plain.std().clamp_min(1e-6)
    error = ((plain - among).abs().max() / spread).item()
    if not error < tolerance(facts.dtype):
        raise ValueError(
            f"{name} does not follow an explicit attention mask with explicit positions (its "
            f"logits move by {error:.2g} standard deviations among masked tokens, as with ALiBi "
            "position biases or a sliding window that its masks do not keep): trees cannot be "
            "scored; choose a model with rotary or learned positions"
        )
    return shapes


def _trial_mask(facts: Facts, positions: Sequence[int], real: Sequence[int]):
    """The mask of the trial's tree, additive: one, or one for each layer type. Nodes not in `real`
    see only the root and themselves."""
    seen = torch.eye(len(positions), dtype=torch.bool)
    seen[:, 0] = True
    for row, node in enumerate(real):
        seen[node, real[: row + 1]] = True
    at = torch.tensor(positions)
    near = at[:, None] - at < TRIAL_WINDOW

    def additive(visible: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(visible.shape, dtype=facts.dtype)
        mask = mask.masked_fill(~visible, torch.finfo(facts.dtype).min)
        return mask[None, None].to(facts.device)

    if facts.sliding_window is None:
        return additive(seen)
    if facts.layer_types is None:
        return additive(seen & near)
    return {"full_attention": additive(seen), "sliding_attention": additive(seen & near)}


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


def _logits(model, name: str, ids, positions, mask, cache, facts: Facts) -> torch.Tensor:
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


def _plain_failure(model, ids, facts: Facts) -> str | None:
    """Return why a model fails even at a plain call of its tokens alone; None where it does not."""
    try:
        model(input_ids=torch.tensor([list(ids)], device=facts.device))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def _shapes(cache: DynamicCache, name: str) -> list[LayerShape]:
    shapes = []
    for index, layer in enumerate(cache.layers):
        keys = getattr(layer, "keys", None)
        if not isinstance(layer, CacheLayerMixin) or keys is None or keys.shape[-2] != 4:
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
