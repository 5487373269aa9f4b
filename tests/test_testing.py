"""`assert_lossless` passes lossless drafters, and fails others."""

from collections.abc import Sequence

import pytest
import torch
from ouroboros.baselines import Greedy, Lookahead, PromptLookup, Speculative
from tiny import llama, prompt_of

from ouroboros import CachedModel, TokenTree, decode
from ouroboros.testing import assert_lossless, tiny_model

LOSSLESS = {
    "one for all": PromptLookup(max_ngram_size=2, num_tokens=4),
    "made for each": lambda: Lookahead(window_size=3, ngram_size=3, verification_set_size=3),
    "with a draft": lambda draft: Speculative(draft, gamma=3),
}


class Drafts(Greedy):
    """Drafts the same tokens at every step, by default one of the text."""

    def __init__(self, draft=None) -> None:
        self.fixed = draft

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        draft = tokens[:1] if self.fixed is None else self.fixed
        return TokenTree.chain(tokens[-1], draft[: budget - 1])


class Listing(Drafts):
    def propose(self, tokens, budget):
        return [1, 2]


class Spoiling(Drafts):
    def propose(self, tokens, budget):
        tokens.append(3)
        return TokenTree.chain(tokens[-2], [])


class Endless(Drafts):
    def propose(self, tokens, budget):
        return TokenTree.chain(tokens[-1], tokens[:1] * 50)


class Lossy(Drafts):
    """Rules by the second best token."""

    def rule(self, choose):
        return lambda logits, tokens, tree: logits.topk(2).indices[:, 1].tolist()


class Mute:
    propose = Drafts.propose


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_drafters_pass(name):
    assert_lossless(LOSSLESS[name], seeds=range(2))


@pytest.mark.parametrize(
    ("drafter", "error", "reason"),
    [
        (Lossy, AssertionError, "Lossy is not lossless .* standard decoding has .* tree there was"),
        (Spoiling, AssertionError, "changed the tokens passed to it"),
        (lambda: Drafts([10**6]), AssertionError, "Drafts.propose drafted id 1000000, the model"),
        (Endless, AssertionError, "50 tokens in a row with a budget of 40: draft at most"),
        (Listing, ValueError, "Listing.propose returned a list: return a TokenTree"),
        (lambda: Drafts(torch.tensor([3])), ValueError, "Drafts.propose drafted tensors: give ids"),
        (Mute, ValueError, "Mute is not a drafter: it has no method reset, observe"),
    ],
)
def test_others_are_told_in_one_line(drafter, error, reason):
    with pytest.raises(error, match=reason) as caught:
        assert_lossless(drafter())
    assert "\n" not in str(caught.value).split("assert")[0].strip()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by kernels, by modules
def test_a_negative_draft_id_is_refused(dtype):
    shape = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    model = CachedModel(llama(dtype=dtype, **shape), engine="fused")
    assert model.exact == (dtype == torch.float32)
    with pytest.raises(ValueError, match="token id -1 is negative"):
        decode(model, Drafts([-1]), prompt_of(5), max_new=4)


def test_greedy_text_of_the_tiny_models_varies():
    for seed in range(3):  # or else a wrong draft would never matter
        assert len(set(decode(tiny_model(seed), Greedy(), prompt_of(5), max_new=40).tokens)) > 2
