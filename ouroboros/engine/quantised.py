"""Quantised weights: this library's int8, and the schemes of transformers.

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

from ouroboros.engine.cpu_intrinsics import can_multiply
from ouroboros.engine.triton_products import product

AUTO, INT8 = "auto", "int8"
LARGEST = 127


class Int8Linear(nn.Module):
    """A linear layer whose weights [out, in] are int8 integers, times a scale for each output."""

    @torch.no_grad()
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        weight = linear.weight.float()
        largest = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny * LARGEST)
        scale = (largest / LARGEST).to(linear.weight.dtype)
        steps = (weight / scale.float()[:, None]).round_().clamp_(-LARGEST, LARGEST)
        self.weight = nn.Parameter(steps.to(torch.int8), requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return product(input, self.weight, self.scale, self.bias)


def quantise(model: PreTrainedModel, config) -> PreTrainedModel:
    """Return a quantised model. "int8" replaces all linear layers except the output head in place;
    "auto" does so on a CPU whose kernels multiply int8 weights (with AVX-512).

    With a quantization config or its dictionary, transformers quantises the model as if it were a
    checkpoint; the result is on the model's device and shares all weights that are not quantised.
    Raises `ValueError` for an unknown name, or if the back end is not installed.
    """
    if isinstance(config, str):
        if config not in (AUTO, INT8):
            raise ValueError(f"quantization_config={config!r}: give {AUTO}, {INT8} or a config")
        head = model.get_output_embeddings()
        layers = [n for n, m in model.named_modules() if type(m) is nn.Linear and m is not head]
        multiplied = model.device.type == "cpu" and model.dtype in (torch.float32, torch.bfloat16)
        if config == AUTO and not (
            layers and multiplied and can_multiply(model.dtype == torch.bfloat16)
        ):
            return model
        if not layers:
            raise ValueError(f"{type(model).__name__} has no linear layers to hold in {INT8}")
        for name in layers:
            model.set_submodule(name, Int8Linear(model.get_submodule(name)))  # type: ignore
        return model
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
    """Return how a model is quantised, such as "int8"; None if it is not."""
    if any(isinstance(module, Int8Linear) for module in model.modules()):
        return INT8
    if not getattr(model, "is_quantized", False):
        return None
    config = model.config.quantization_config
    method = str(getattr(config.quant_method, "value", config.quant_method))
    kind = getattr(config, "weights", None) or getattr(config, "quant_type", "")
    name = kind if isinstance(kind, str) else type(kind).__name__.removesuffix("Config")
    return f"{method} {name}".strip()


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
    """Return a copy of the model with plain weights: integers times scales.

    They are multiplied in float64, then rounded to `dtype`. Raises `ValueError` unless each
    quantised weight is int8 with a scale per row.
    """
    plain: dict[int, nn.Module] = {}
    for name, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        if isinstance(module, Int8Linear):
            whole = weight.double() * module.scale.double()[:, None]
        elif isinstance(weight, torch.Tensor) and is_traceable_wrapper_subclass(weight):
            whole = _torchao_product(name, weight)
        else:
            continue
        plain[id(module)] = linear = nn.Linear(*whole.T.shape, device="meta")  # type: ignore[misc]
        linear.weight = nn.Parameter(whole.to(dtype), requires_grad=False)
        bias = getattr(module, "bias", None)
        own = None if bias is None else nn.Parameter(bias.detach().to(dtype), False)
        linear.register_parameter("bias", own)
    if not plain:
        raise ValueError(
            f"weights quantised by {quantised_by(model)} cannot be dequantised: use int8 weights, "
            "torchao's int8, or do without the audit (audit=none)"
        )
    return copy.deepcopy(model, plain)


def _torchao_product(name: str, weight: Any) -> torch.Tensor:
    """Return a torchao weight's integers times scales in float64, [out, in]. Raises `ValueError`,
    with the layer's `name`, unless it is int8 with a scale for each row or one for all."""
    whole: Any = getattr(weight, "qdata", None)
    scale: Any = getattr(weight, "scale", None)
    if whole is None or whole.dtype != torch.int8 or scale.numel() not in (1, len(whole)):
        raise ValueError(f"{name}: {type(weight).__name__} is not int8 with a scale for each row")
    zero = getattr(weight, "zero_point", None)
    return (whole.double() - (0 if zero is None else zero.double())) * scale.double()
