"""What fits: bytes of weights and of cached tokens, from a config alone, and the memory there is.

Invariant: nothing is loaded. A model is built without storage, so a 34B takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from ouroboros import standin
from ouroboros.costs import Footprint

SPARE = 0.05  # of the free memory stays free, for activations, logits and masks


def config_of(name: str) -> PreTrainedConfig:
    """Return a model's config: of a folder, of a shape (`standin.SHAPES`), or of a hub id.

    An id that begins with a shape's name has that shape, so that published models need no network.
    Raises `ValueError` where there is no config.
    """
    own = Path(name).name.lower()
    known = [shape for shape in standin.SHAPES if own.startswith(shape)]
    if known and not Path(name).is_dir():
        return standin.shape(max(known, key=len))
    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the config of {name!r} cannot be loaded, and no shape is named so: give a hub id "
            f"you can reach, a folder, or one of {', '.join(standin.SHAPES)}"
        ) from error


def footprint_of(config: PreTrainedConfig, dtype: torch.dtype, *, int8: bool = False) -> Footprint:
    """Return the bytes of a model of this config. `int8`: the layers' matrices take a byte for each
    weight and four for the scale of each row; embedding, head and cache stay in `dtype`."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    held = sum(weight.nbytes for weight in set(model.parameters()))
    tied = head is not None and head.weight is embedding.weight
    if int8:
        layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
        held -= sum(layer.weight.nbytes for layer in layers)
        held += sum(layer.weight.numel() + 4 * layer.out_features for layer in layers)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_bytes = 2 * text.num_hidden_layers * heads * width * dtype.itemsize
    return Footprint(held, held - (0 if tied else embedding.weight.nbytes), kv_bytes)


def longest_context(footprints: Mapping[str, Footprint], free_bytes: int) -> int:
    """Return how many tokens fit in memory beside the weights, in the caches of all models; 0
    where the weights alone do not fit."""
    room = (1 - SPARE) * free_bytes - sum(own.weight_bytes for own in footprints.values())
    return max(0, int(room // sum(own.kv_bytes_per_token for own in footprints.values())))


@dataclass(frozen=True)
class Room:
    """The memory of a device, in bytes."""

    device: str
    free_bytes: int
    total_bytes: int


def room(device: str | None = None) -> Room:
    """Return the memory of a device (default: the first GPU, else this machine's)."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.device(name).type == "cuda":
        return Room(torch.cuda.get_device_name(name), *torch.cuda.mem_get_info(name))
    memory = psutil.virtual_memory()
    return Room("CPU", memory.available, memory.total)
