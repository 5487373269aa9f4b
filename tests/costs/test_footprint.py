"""Bytes of known shapes and of real models, and costs from bytes and bandwidth."""

import pytest
import torch
from bench_models import tiny_llama
from tiny import gemma3, gpt2

from ouroboros.costs import Costs
from ouroboros.costs.timing import footprint_of
from ouroboros.standin import shape


def test_the_published_pairs_weigh_what_they_weigh():
    """Yi-34B in bf16 is 68.8 GB; its cache holds 60 layers of 8 heads of 128, twice."""
    yi = footprint_of(shape("yi-34b"), torch.bfloat16)
    assert yi.weight_bytes / 1e9 == pytest.approx(68.8, abs=0.05)
    assert yi.kv_bytes_per_token == 2 * 60 * 8 * 128 * 2
    assert yi.weight_bytes - yi.read_bytes == 64000 * 7168 * 2
    small = footprint_of(shape("yi-6b"), torch.bfloat16)
    assert small.read_bytes / yi.read_bytes == pytest.approx(0.17, abs=0.01)
    llama = footprint_of(shape("llama-2-70b"), torch.bfloat16)
    assert llama.weight_bytes / 1e9 == pytest.approx(138.0, abs=0.1)


@pytest.mark.parametrize("make", [lambda: tiny_llama(0, layers=2), gpt2, gemma3])
def test_a_config_tells_what_the_model_weighs(make):
    model = make()
    held = sum(weight.nbytes for weight in set(model.parameters()))
    dtype = next(model.parameters()).dtype
    assert footprint_of(model.config, dtype).weight_bytes == held


def test_a_call_costs_its_bytes_or_its_arithmetic():
    target = footprint_of(shape("yi-34b"), torch.bfloat16)
    draft = footprint_of(shape("yi-6b"), torch.bfloat16)
    costs = Costs.roofline(target, draft, bandwidth_gb_s=4300)
    assert costs.target.call_ms(1, 1) == pytest.approx(15.8, abs=0.1)
    assert costs.draft.call_ms(1, 1) == pytest.approx(2.7, abs=0.1)
    assert costs.target.call_ms(64, 1) == costs.target.call_ms(1, 1)
    assert costs.floor_ms("target", 1) == pytest.approx(costs.target.call_ms(1, 1))
    limited = Costs.roofline(target, None, bandwidth_gb_s=4300, tflops=790)
    assert limited.target.call_ms(512, 1) == pytest.approx(
        512 * target.read_bytes / 790e12 * 1e3, rel=1e-6
    )
    assert limited.draft is None
    with pytest.raises(ValueError, match="above 0"):
        Costs.roofline(target, None, bandwidth_gb_s=0)
