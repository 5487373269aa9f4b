"""The bytes of a model's weights and of a cached token, computed from its config.

Invariant: no weights are loaded. A model is built on the "meta" device, which takes milliseconds.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from ouroboros import standin
from ouroboros.costs import Footprint
from ouroboros.engine.quantised import bytes_of, stored_bytes


def config_of(name: str) -> PreTrainedConfig:
    """Return the config of a model: a folder, a name in `standin.SHAPES`, or a hub id.

    An id whose last part starts with a name in `SHAPES` has that config, without access to the hub.
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


def footprint_of(config: PreTrainedConfig, dtype: torch.dtype) -> Footprint:
    """Return the bytes of weights and of a cached token in `dtype`, without allocating weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_bytes = 2 * text.num_hidden_layers * heads * width * dtype.itemsize
    return Footprint(sum(map(stored_bytes, model.parameters())), bytes_of(model), kv_bytes)
