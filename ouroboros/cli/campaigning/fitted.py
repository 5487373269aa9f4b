"""A job's config for the memory there is: whole shapes, or the same with fewer layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ouroboros.bench.campaign.estimate import fitting, footprints
from ouroboros.cli.build import any_drafts

LEAST_CONTEXT = 2048  # tokens that both models' caches must have room for beside the weights


class TooLarge(ValueError):
    """Models that do not fit in the memory, at no share of their layers."""


def fitted(
    config: dict,
    *,
    memory_bytes: int,
    dtype: torch.dtype,
    profile: Mapping | None = None,
    shares: Sequence[float] = (1.0,),
) -> dict:
    """Return the config of a stand-in's run with the shapes that fit; others as they are. Raises
    `TooLarge` where none of the `shares` of the layers does."""
    shapes = config["model"]["standin"]
    if not shapes:
        return config
    roles = ("target", "draft") if any_drafts(config["decoder"]) else ("target",)
    own = {role: shapes[role] for role in roles}
    context = LEAST_CONTEXT + (config.get("context_tokens") or 0)
    context = max(context, *(profile or {}).get("contexts", (0,)), 0)
    found = fitting(own, dtype, context=context, memory_bytes=memory_bytes, shares=shares)
    if found is None:
        weights = sum(one.weight_bytes for one in footprints(own, dtype).values()) / 2**30
        raise TooLarge(
            f"{weights:.0f} GiB of weights ({' and '.join(own.values())}) and caches of {context} "
            f"tokens, and the memory is {memory_bytes / 2**30:.0f} GiB"
        )
    return {**config, "model": {**config["model"], "standin": {**shapes, **found}}}
