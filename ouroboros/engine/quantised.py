"""Quantised weights (int8, weights only), through transformers' quantization config.

Lossless means equal to standard decoding of the same quantised model. Invariant: an audit's float64
reference uses the same integers and scales, not the weights from before quantisation.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

PARTS = (("_data", "_scale"), ("qdata", "scale"))  # as optimum-quanto and torchao name them
KERNEL_ROW = 16


def quantise(model: PreTrainedModel, config) -> PreTrainedModel:
    """Return a quantised version of a model in memory, as if it were loaded from a checkpoint.

    `config` is a quantization config or its dictionary. The result is on the model's device and
    shares all weights that are not quantised. Raises `ValueError` if the back end is not installed.
    """
    try:
        own = type(model).from_pretrained(
            None,
            config=copy.deepcopy(model.config),
            state_dict=model.state_dict(),
            dtype=model.dtype,
            quantization_config=config,
            device_map={"": model.device},
        )
    except ImportError as error:
        raise ValueError(str(error).strip().splitlines()[0]) from error
    own.generation_config = copy.deepcopy(model.generation_config)
    return own.eval()


def quantised_by(model: PreTrainedModel) -> str | None:
    """Return how a model is quantised, such as "quanto int8"; None if it is not."""
    if not getattr(model, "is_quantized", False):
        return None
    config = model.config.quantization_config
    method = str(getattr(config.quant_method, "value", config.quant_method))
    kind = getattr(config, "weights", None) or getattr(config, "quant_type", "")
    name = kind if isinstance(kind, str) else type(kind).__name__.removesuffix("Config")
    return f"{method} {name}".strip()


def check_kernels(model: PreTrainedModel) -> None:
    """Raise `ValueError` for layers that torch's int8 kernel for bfloat16 on a CPU miscomputes.

    It reads beyond a row whose length is not a multiple of 16: wrong sums, or a segmentation fault
    (torch 2.13, `_weight_int8pack_mm`, called by optimum-quanto).
    """
    for name, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        if type(weight).__name__ != "WeightQBytesTensor" or weight.dtype != torch.bfloat16:
            continue
        if weight.device.type == "cpu" and weight.shape[-1] % KERNEL_ROW:
            raise ValueError(
                f"{name} has rows of {weight.shape[-1]} weights: torch's int8 kernel for bfloat16 "
                f"on a CPU needs a multiple of {KERNEL_ROW}; use dtype=float32, or quantise with "
                "torchao"
            )


def stored_bytes(weight: torch.Tensor) -> int:
    """Return the bytes of a weight as stored: its integers and scales, if quantised."""
    if not is_traceable_wrapper_subclass(weight):
        return weight.nbytes
    return sum(stored_bytes(getattr(weight, name)) for name in weight.__tensor_flatten__()[0])


def bytes_of(model: PreTrainedModel) -> int:
    """Return the weight bytes read per decoding step: all but the input embeddings, which count if
    they are tied to the output head. A mixture of experts may read less."""
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    assert isinstance(table, torch.Tensor)
    held = sum(map(stored_bytes, model.parameters()))
    return held if head is not None and head.weight is table else held - stored_bytes(table)


def dequantise(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy with plain weights: each quantised one is its integers times its scales.

    Products are computed in float64, then rounded to `dtype`. Raises `ValueError` unless each
    quantised weight is int8 with a scale per row.
    """
    plain: dict[int, nn.Module] = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and is_traceable_wrapper_subclass(weight):
            plain[id(module)] = linear = nn.Linear(*weight.shape[::-1], device="meta")
            linear.weight = nn.Parameter(_product(name, weight).to(dtype), requires_grad=False)
            bias = getattr(module, "bias", None)
            linear.bias = None if bias is None else nn.Parameter(bias.detach().to(dtype), False)
    if not plain:
        raise ValueError(
            f"weights quantised by {quantised_by(model)} cannot be dequantised: use int8 weights "
            "of optimum-quanto or torchao, or do without the audit (audit=none)"
        )
    return copy.deepcopy(model, plain)


def _product(name: str, weight: Any) -> torch.Tensor:
    """Return integers times scales in float64, [out, in]."""
    parts: dict[str, Any] = {p: getattr(weight, p) for p in weight.__tensor_flatten__()[0]}
    for integers, scales in PARTS:
        whole: Any = parts.get(integers)
        scale: Any = parts.get(scales)
        if whole is not None and whole.dtype == torch.int8 and scale.numel() in (1, len(whole)):
            zero = parts.get("zero_point")
            return (whole.double() - (0 if zero is None else zero.double())) * scale.double()
    raise ValueError(f"{name}: {type(weight).__name__} is not int8 with a scale for each row")
