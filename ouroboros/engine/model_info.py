"""What the engine needs to know of a model, as far as its config says it.

A model whose state cannot be rolled back, or masked by a tree, is refused by name; what a config
does not say, the trial of `ouroboros.engine.support` finds out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ouroboros.engine.cache import LayerShape


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model. `max_len` is the number of usable positions;
    `layer_types` is None unless full and sliding layers are mixed."""

    max_len: int
    sliding_window: int | None
    layer_types: tuple[str, ...] | None
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    layers: list[LayerShape]


def config_facts(model: PreTrainedModel) -> ModelInfo:
    """Return what the config says, with no layers yet; raise `ValueError` for what it rules out."""
    config = model.config.get_text_config()
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; a decoder-only causal LM is needed")
    if getattr(config, "alibi", False):
        raise ValueError(
            f"{name} is configured with alibi=True: its position biases follow the order of slots, "
            "not a tree's positions; choose a model with rotary or learned positions"
        )
    max_len = position_limit(config)
    window, types = _sliding(config, name, max_len)
    embedding = model.get_input_embeddings().weight
    assert isinstance(embedding, torch.Tensor)
    return ModelInfo(max_len, window, types, len(embedding), embedding.device, model.dtype, [])


def tolerance(dtype: torch.dtype) -> float:
    """Return by how many standard deviations logits may differ between two ways of one call."""
    return 2e-3 if dtype in (torch.float32, torch.float64) else 0.25


def position_limit(config) -> int:
    """Return how many positions a text model's config allows; 2**30 where it sets no limit."""
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
