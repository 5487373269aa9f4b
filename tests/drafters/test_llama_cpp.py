"""llama.cpp as a peer returns the same text with the same weights."""

import sys

import pytest
import torch
from ouroboros.baselines import Greedy
from ouroboros.baselines.llama_cpp import LlamaCpp
from parts import run_peer
from transformers import LlamaForCausalLM

from ouroboros import CachedModel, Sampler, decode
from ouroboros.models.load import model_path


def test_a_missing_package_or_file_is_one_line(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ValueError, match="pip install llama-cpp-python"):
        LlamaCpp("target.gguf")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> str:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    from save_standin import write_gguf

    path = tmp_path_factory.mktemp("gguf") / "target.gguf"
    model = LlamaForCausalLM.from_pretrained(model_path("reference/target"), dtype=torch.float32)
    write_gguf(model, path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("lookup", [0, 4])
def test_the_same_weights_write_the_same_text(gguf, lookup) -> None:
    target = CachedModel.from_pretrained(model_path("reference/target"), dtype=torch.float32)
    prompt = target.tokenizer("def mean(values):\n    return sum(values) /")["input_ids"]
    expected = decode(target, Greedy(), prompt, max_new=40)
    peer = LlamaCpp(gguf, lookup)
    for _ in range(2):
        trace = run_peer(peer, target, prompt, max_new=40)
        assert trace.tokens == expected.tokens
        assert sum(step.new for step in trace.steps) == 40
        assert (len(trace.steps) < 40) == bool(lookup)
    assert run_peer(peer, target, prompt, max_new=40, eos={trace.new_tokens[5]}).finish == "eos"
    with pytest.raises(ValueError, match="temperature 0 only"):
        run_peer(peer, target, prompt, max_new=2, choose=Sampler(seed=1))
    with pytest.raises(ValueError, match=r"write one with scripts/save_standin\.py"):
        LlamaCpp(None)
