"""A changed model is refused until it is read again; `generate` reads a plain model by itself."""

import copy
import gc

import pytest
import torch
from tiny import VOCAB, Session, gemma3, llama, plain, prompt_of
from torch import nn

from ouroboros import CachedModel, ModelChanged, TokenTree, decode, generate
from ouroboros.decode import RootOnly

WIDE = {"hidden_size": 64, "intermediate_size": 160, "head_dim": 32, "num_hidden_layers": 2}
PROMPT = prompt_of(9)


def with_other_head(model) -> None:
    model.lm_head = copy.deepcopy(model.lm_head)
    model.lm_head.weight.neg_()


def with_adapter(model) -> None:
    attention = model.model.layers[1].self_attn
    attention.q_proj = nn.Sequential(attention.q_proj, nn.Hardtanh(-1e-3, 1e-3))


CHANGES = {
    "a replaced weight": lambda m: setattr(m.lm_head, "weight", nn.Parameter(-m.lm_head.weight)),
    "a moved weight": lambda m: setattr(m.lm_head.weight, "data", -m.lm_head.weight.data),
    "a written weight": lambda m: m.model.layers[1].self_attn.k_proj.weight.mul_(-2),
    "a written norm": lambda m: m.model.norm.weight.mul_(-2),
    "a new bias": lambda m: m.lm_head.register_parameter(
        "bias", nn.Parameter(torch.linspace(-9, 9, VOCAB, dtype=m.dtype))
    ),
    "a replaced module": with_other_head,
    "an adapter": with_adapter,
    "another dtype": lambda m: m.to(torch.float32 if m.dtype == torch.float64 else torch.float64),
    "more ids": lambda m: m.resize_token_embeddings(VOCAB + 9, mean_resizing=False),
}
MODELS = {"fused": lambda: llama(dtype=torch.float32, **WIDE), "by modules": gemma3}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_a_changed_model_is_refused_until_it_is_read_again_as_generate_does(make, change):
    model, ids = make(), torch.tensor([PROMPT])
    wrapped = CachedModel(copy.deepcopy(model))
    assert wrapped.exact == (make is MODELS["fused"])
    decode(wrapped, RootOnly(), PROMPT, max_new=5)
    for draft in (None, model):  # its own draft too
        generate(model, ids, draft=draft, max_new_tokens=5)
    for own in (model, wrapped.model):
        CHANGES[change](own)
    expected = plain(model, PROMPT, 20)
    with pytest.raises(ModelChanged, match=r"call refresh\(\) on the CachedModel"):
        decode(wrapped, RootOnly(), PROMPT, max_new=5)
    wrapped.refresh()
    assert decode(wrapped, RootOnly(), PROMPT, max_new=20).tokens == expected
    for draft in (None, model):
        assert generate(model, ids, draft=draft, max_new_tokens=20)[0].tolist() == expected
    assert model.config._attn_implementation == "sdpa"


def test_kernels_never_read_memory_that_was_given_back():
    """A weight that is moved within a sequence is used as it was until the sequence ends."""
    found = []
    for moved in (False, True):
        session = Session(CachedModel(llama(dtype=torch.float32, **WIDE)))
        session.score([3, 4], TokenTree.chain(4, ()))
        for weight in session.model.parameters() if moved else ():
            weight.data = torch.full_like(weight, torch.nan)
        gc.collect()
        found.append(session.score([3, 4, 5], TokenTree.chain(5, ())).clone())
    assert torch.equal(*found)


def test_hooks_at_wrapping_are_called_in_each_sequence():
    """By the modules, from the first token on, because what a hook does may vary."""
    model, by = llama(dtype=torch.float32, **WIDE), [1.0]
    model.lm_head.register_forward_hook(lambda _, __, out: by[0] * out)
    model.get_input_embeddings().register_forward_hook(lambda *a: a[2] + by[0] * a[2].flip(-1))
    for engine in ("auto", "static"):
        wrapped = CachedModel(model, engine=engine)
        assert wrapped.describe_engine()["fallback"] == "its modules have hooks"
        for by[0] in (1.0, -2.0):
            found = decode(wrapped, RootOnly(), PROMPT, max_new=20).tokens
            assert found == plain(model, PROMPT, 20)
