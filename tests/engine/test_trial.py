"""Trial calls on a model with massive activations, as real models have."""

import pytest
import torch
from tiny import llama

from ouroboros import CachedModel
from ouroboros.engine.cache import tolerance
from ouroboros.engine.fused import Fused
from ouroboros.engine.trial import why_different

HALF = torch.bfloat16


def massive() -> torch.nn.Module:
    """A bfloat16 model in which one input of a down projection is written thousands of times larger
    than the others to one feature, so that rounding there exceeds the spread of the logits."""
    model = llama(dtype=HALF, hidden_size=64, head_dim=16, num_hidden_layers=4)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[5, 3] = 3e3
    return model


def test_the_models_own_rounding_is_the_unit_of_trials():
    model = CachedModel(massive())
    assert model.engine.info.tolerance > tolerance(HALF)
    assert model.why_not_together() is None
    facts = model.describe_engine()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert isinstance(model.engine, Fused) and facts["fallback"] is None
    else:
        assert "the CPU kernels run" in facts["fallback"]


def test_an_engine_that_is_wrong_after_the_first_node_is_refused():
    reference, wrong = (CachedModel(llama(), engine="eager").engine for _ in range(2))
    assert why_different(wrong, reference) is None
    call = wrong.call

    def other(parts):
        (logits,) = call(parts)
        logits[1:] = logits[1:].flip(1)
        return [logits]

    wrong.call = other
    assert "its logits are off by" in why_different(wrong, reference)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float16), ids=str)
def test_a_dtype_without_kernels_is_given_as_the_reason(dtype):
    model = CachedModel(llama(dtype=dtype))
    assert str(dtype) in model.describe_engine()["fallback"]
