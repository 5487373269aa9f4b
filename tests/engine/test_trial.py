"""Trial calls on a model with massive activations, as real models have."""

import re
from functools import partial

import pytest
import torch
from tiny import llama

from ouroboros import CachedModel, TokenTree
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


def after_the_first_node(call, parts):
    (logits,) = call(parts)
    logits[1:] = logits[1:].flip(1)
    return [logits]


def of_other_tokens(call, parts):
    """As of a graph that replays the inputs of its capture."""
    ((slots, layout),) = parts
    tree = TokenTree((1,) * len(layout.tree), layout.tree.parents)
    return call([(slots, layout._replace(tree=tree))])


def failing(call, parts):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (None, None),
        (after_the_first_node, "its logits are off by .* standard deviations"),
        (of_other_tokens, "its logits are off by .* standard deviations"),
        (failing, "operation not permitted when stream is capturing"),
    ],
)
def test_an_engine_that_answers_otherwise_is_found_out(other, reason):
    """In static calls, which pad, there is nothing to be found."""
    engines = [CachedModel(llama(), engine=name).engine for name in ("static", "eager")]
    if other:
        engines[0].call = partial(other, engines[0].call)
    found = why_different(*engines)
    assert found is reason if reason is None else re.fullmatch(reason, found)
