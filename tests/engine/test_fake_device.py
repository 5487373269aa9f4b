"""A whole step with Yi-34B's shapes on a fake device.

Tensors without contents know their device, so a wait for it, or a mixture of devices, is an error.
No GPU is needed, but a build of torch that knows one: others cannot index such tensors.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from transformers import AutoModelForCausalLM, LlamaConfig

from ouroboros.engine.attention import NAME
from ouroboros.engine.cache import LayerShape, ModelInfo, SlotCache
from ouroboros.engine.masks import Layout
from ouroboros.engine.static import Static
from ouroboros.select import Sampler, argmax
from ouroboros.tree import TokenTree

LAYERS, VOCAB = 2, 64000
MODE = FakeTensorMode()  # one for all, since samplers keep their noise
YI_34B = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=7168,
    intermediate_size=20480,
    num_hidden_layers=LAYERS,
    num_attention_heads=56,
    num_key_value_heads=8,
)


@pytest.fixture(scope="module")
def engine():
    device = torch.device("cuda", 0)
    with MODE, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                YI_34B, dtype=torch.bfloat16, attn_implementation="sdpa"
            )
        for module in model.eval().modules():
            for name, own in module.named_parameters(recurse=False):
                there = torch.empty_like(own, device=device)
                setattr(module, name, torch.nn.Parameter(there, requires_grad=False))
            for name, own in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty_like(own, device=device))
        model.set_attn_implementation(NAME)
        shape = LayerShape(8, 128, 128, torch.bfloat16, device)
        facts = ModelInfo(4096, None, None, VOCAB, device, torch.bfloat16, [shape] * LAYERS)
        static = Static(model, facts, SlotCache(facts.layers, 1024), compiled=False)
        static.graphs = False
        patch.setattr(static, "_on_device", torch.inference_mode)
        yield static


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("choose", [argmax, Sampler(temperature=0.8)], ids=["T=0", "T=0.8"])
@pytest.mark.parametrize("nodes", [1, 24])
def test_a_step_neither_waits_nor_mixes_devices(engine, nodes, choose):
    tree = TokenTree(tuple(range(nodes)), (-1, *[0] * (nodes - 1)))
    (logits,) = engine.call([(engine.cache, Layout(700, [5, 6], tree))])
    assert logits.shape == (nodes, VOCAB) and logits.device.type == "cuda"
    for choice, shape in ((choose, (nodes,)), (choose.ranked, (nodes, 3, 2))):

        def choosing(key, compute, *inputs, shape=shape):
            """What a choice computes on the device, before it is waited for."""
            result = compute(*inputs)
            assert result.shape == shape and result.device.type == "cuda"
            raise InterruptedError

        logits.choosing = choosing
        with pytest.raises(InterruptedError):
            choice(logits, [0] * 703, tree)
