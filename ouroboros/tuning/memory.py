"""Compute whether models fit in memory: bytes of weights and of cached tokens, from their configs.

Invariant: no weights are loaded. Models are built without storage, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import psutil
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from ouroboros import standin
from ouroboros.costs import Footprint
from ouroboros.engine.support import position_limit

SPARE = 0.05  # share of the free memory kept for activations, logits and masks


class DeviceMemory(NamedTuple):
    """The memory of a device, in bytes."""

    device: str
    free_bytes: int
    total_bytes: int

    @classmethod
    def of(cls, device: str | None = None) -> DeviceMemory:
        """Return the memory of a device (default: the first GPU, or else the machine's RAM)."""
        name = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if torch.device(name).type == "cuda":
            return cls(torch.cuda.get_device_name(name), *torch.cuda.mem_get_info(name))
        memory = psutil.virtual_memory()
        return cls("CPU", memory.available, memory.total)


def config_of(name: str) -> PreTrainedConfig:
    """Return a model's config, given a folder, a shape (`standin.SHAPES`), or a hub id.

    An id that starts with a shape's name has that shape, so published models need no network.
    Raises `ValueError` if there is no config.
    """
    model = Path(name).name.lower()
    shapes = [shape for shape in standin.SHAPES if model.startswith(shape)]
    if shapes and not Path(name).is_dir():
        return standin.shape(max(shapes, key=len))
    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the config of {name!r} cannot be loaded, and no shape has this name: give a hub id "
            f"you can reach, a folder, or one of {', '.join(standin.SHAPES)}"
        ) from error


def footprint_of(config: PreTrainedConfig, dtype: torch.dtype, *, int8: bool = False) -> Footprint:
    """Return the bytes of a model. `int8`: the layers' matrices take a byte per weight and four per
    row for scales; embedding, head and cache stay in `dtype`."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    held = sum(weight.nbytes for weight in set(model.parameters()))
    tied = head is not None and head.weight is embedding.weight
    for layer in model.modules() if int8 else ():
        if isinstance(layer, nn.Linear) and layer is not head:
            held += layer.weight.numel() + 4 * layer.out_features - layer.weight.nbytes
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_bytes = 2 * text.num_hidden_layers * heads * width * dtype.itemsize
    return Footprint(held, held - (0 if tied else embedding.weight.nbytes), kv_bytes)


def longest_context(footprints: Mapping[str, Footprint], free_bytes: int) -> int:
    """Return how many tokens of KV cache for all models fit beside the weights, at least 0:
    (0.95 free - weights) / (bytes per cached token)."""
    room = (1 - SPARE) * free_bytes - sum(own.weight_bytes for own in footprints.values())
    return max(0, int(room // sum(own.kv_bytes_per_token for own in footprints.values())))


def fits(
    models: Mapping[str, tuple[str, torch.dtype]],
    memory: DeviceMemory,
    *,
    max_len: int | None = None,
) -> tuple[dict, pd.DataFrame]:
    """Return the memory that the models need and the longest context that fits, as JSON values and
    as a table: once in the models' dtypes, once in int8.

    `models` maps each role to (folder, shape or hub id, dtype), target first. Raises `ValueError`
    if a model has no config.
    """
    configs = {role: config_of(name) for role, (name, _) in models.items()}
    target, (place, _) = next(iter(configs.values())), next(iter(models.values()))
    # The shapes of published models lack the number of positions.
    limit = position_limit(target.get_text_config()) if Path(place).is_dir() else 1 << 30
    positions = min(limit, max_len or limit)
    document: dict = {"free_gb": memory.free_bytes / 1e9, "device": memory.device}
    table = pd.DataFrame(
        index=["weights", "GB (target + draft)", "KV cache, KB/token", "longest context"]
    )
    for kind in ("as is", "int8"):
        sizes = {
            r: footprint_of(configs[r], d, int8=kind == "int8") for r, (_, d) in models.items()
        }
        longest = longest_context(sizes, memory.free_bytes)
        gb = {role: own.weight_bytes / 1e9 for role, own in sizes.items()}
        kv = {role: own.kv_bytes_per_token for role, own in sizes.items()}
        document[kind] = {"weights_gb": gb, "kv_bytes_per_token": kv}
        document[kind] |= {"longest_context": longest, "positions": positions}
        context = f"{longest}, by memory" if longest else "the weights do not fit"
        if longest >= positions:
            context = f"{positions}, the model's (memory: {longest})"
        weights = " + ".join(map("{:.2f}".format, gb.values()))
        table[kind] = kind, weights, f"{sum(kv.values()) / 1e3:.1f}", context
    return document, table.T
