"""What the engine knows of a model: found by `ouroboros.engine.support` when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ouroboros.engine.cache import LayerShape


@dataclass(frozen=True)
class ModelInfo:
    """What the engine knows of a model. `max_len` is the number of usable positions; `layer_types`
    is None unless full and sliding layers are mixed; `layers` are the shapes of the KV cache."""

    max_len: int
    sliding_window: int | None
    layer_types: tuple[str, ...] | None
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    layers: list[LayerShape]


def tolerance(dtype: torch.dtype) -> float:
    """Return by how many standard deviations the logits of two equivalent calls may differ."""
    return 2e-3 if dtype in (torch.float32, torch.float64) else 0.25


def position_limit(config) -> int:
    """Return how many positions a text model's config allows; 2**30 without a limit."""
    limits = [getattr(config, key, None) for key in ("max_position_embeddings", "n_positions")]
    limit = next((value for value in limits if value and value > 0), 1 << 30)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {rope.get("rope_type"), rope.get("type")} if isinstance(rope, dict) else set()
    if "longrope" in kinds:  # beyond the original length every position is scaled anew
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        return min(limit, original or limit)
    return limit
