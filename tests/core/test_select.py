"""Sampling with shared noise has the model's distribution, and transformers' tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import VOCAB, llama, plain, prompt_of
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ouroboros import CachedModel, TokenTree
from ouroboros.core import noise as cpu_noise
from ouroboros.core.select import Sampler, argmax, gumbel
from ouroboros.decode import RootOnly, decode

MASK_64 = (1 << 64) - 1
GOLDEN_STEP = 0x9E3779B97F4A7C15

GOLDEN_7_3 = [-1.6644632816314697, 2.351469039916992, 1.6903109550476074, 1.723067283630371]
GOLDEN_0_0 = [-0.08116903156042099, -0.2719792425632477, -0.26508966088294983]

SETTINGS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.6},
    {"top_k": 4},
    {"temperature": 1.3, "top_p": 0.8},
    {"min_p": 0.15},
    {"temperature": 0.9, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
]


def splitmix(x: int) -> int:
    """splitmix64's finaliser on Python's own integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK_64
    return x ^ (x >> 31)


def naive_gumbel(seed: int, position: int, token: int) -> float:
    key = splitmix((splitmix((seed + GOLDEN_STEP) & MASK_64) + position) & MASK_64)
    bits = splitmix((key + (token + 1) * GOLDEN_STEP) & MASK_64)
    return -math.log(-math.log(((bits >> 12) + 0.5) / 2**52))


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4),
    st.integers(1, 20),
)
def test_noise_is_the_hash_of_seed_position_and_token(seed, positions, vocab):
    noise = gumbel(seed, positions, vocab, "cpu")
    expected = [[naive_gumbel(seed, at, token) for token in range(vocab)] for at in positions]
    assert noise.dtype == torch.float32
    assert noise.double().numpy() == pytest.approx(np.array(expected), rel=1e-6, abs=1e-6)


def test_golden_noise():
    """These values must never change: a seed's samples are part of recorded results."""
    assert gumbel(7, [3], 4, "cpu")[0].tolist() == GOLDEN_7_3
    assert gumbel(0, [0], 3, "cpu")[0].tolist() == GOLDEN_0_0


def test_a_samplers_noise_depends_neither_on_the_vocabulary_nor_on_positions_before():
    wide, cpu = gumbel(5, [9], 50_000, "cpu")[0], torch.device("cpu")
    for width in (1, 13, 32_000):
        assert torch.equal(gumbel(5, [9], width, "cpu")[0], wide[:width])
    sampler = Sampler(seed=5)
    for width in (13, 40, 20):
        assert torch.equal(sampler.noise(9, width, cpu), wide[:width])
    for position in [*range(1030), 9]:
        sampler.noise(position, 2, cpu)
    assert torch.equal(sampler.noise(9, 2, cpu), wide[:2])


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 1 << 40))
def test_compiled_noise_has_the_bits_of_a_gpus(seed, position):
    compiled = gumbel(seed, [position, position + 1], 3_000, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_noise, "COMPILED", False)
        assert torch.equal(compiled, gumbel(seed, [position, position + 1], 3_000, "cpu"))


@pytest.mark.gpu
def test_noise_has_equal_bits_on_cpu_and_gpu():
    for position in range(50):
        assert torch.equal(
            gumbel(3, [position], 64_000, "cpu")[0], gumbel(3, [position], 64_000, "cuda")[0].cpu()
        )


def test_over_seeds_tokens_have_the_distribution_of_the_softmax():
    """Chi-square over 60 seeds x 41 positions; wrong noise is far beyond the cut."""
    generator = torch.Generator().manual_seed(2)
    row = 1.5 * torch.randn(1, 11, generator=generator)
    tree = TokenTree.chain(0, range(40))
    counts = np.zeros(11)
    for seed in range(60):
        chosen = Sampler(seed=seed)(row.expand(41, -1), [0], tree)
        counts += np.bincount(chosen, minlength=11)
    expected = row[0].double().softmax(-1).numpy() * counts.sum()
    assert chisquare(counts, expected).pvalue > 1e-3


class Noise(LogitsProcessor):
    """The noise as a logits processor of its own, from Python's integers alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, input_ids, scores):
        at = input_ids.shape[-1]
        noise = [naive_gumbel(self.seed, at, token) for token in range(scores.shape[-1])]
        return scores + torch.tensor([noise], dtype=scores.dtype)


WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_sample_is_what_transformers_draws_with_the_same_noise(settings):
    model = llama()
    cached = CachedModel(llama())
    warpers, texts = [WARPERS[name](value) for name, value in settings.items()], set()
    for seed in (0, 1, 99):
        prompt = prompt_of(5, seed)
        processors = LogitsProcessorList([*warpers, Noise(seed)])
        expected = plain(model, prompt, 25, logits_processor=processors)
        choose = Sampler(seed=seed, **settings)
        assert decode(cached, RootOnly(), prompt, max_new=25, choose=choose).tokens == expected
        texts.add(tuple(expected[5:]))
    assert len(texts) == 3


@pytest.mark.parametrize("count", [1, 2, 5, VOCAB + 3])
@pytest.mark.parametrize("choose", [argmax, Sampler(seed=4, temperature=1.4, top_k=6)])
def test_ranked_agrees_with_the_choice_and_names_the_runners_up(choose, count):
    tree = TokenTree.chain(0, range(19))
    logits = torch.randn(20, VOCAB, generator=torch.Generator().manual_seed(1))
    ranks = choose.ranked(logits, [0], tree, count)
    assert ranks.ids[:, 0].tolist() == choose(logits, [0], tree)
    scores, shares = logits, logits.softmax(-1)
    if choose is not argmax:
        scores, shares = choose.scores(logits, [0], tree), choose.warped(logits).softmax(-1)
    assert {own.shape for own in ranks} == {(20, count)}
    for row, (score, share) in enumerate(zip(scores, shares, strict=True)):
        best = sorted(range(VOCAB), key=lambda i: -score[i])[:count]
        known = slice(len(best))
        assert ranks.scores[row, known] == pytest.approx(score[best].tolist())
        assert ranks.shares[row, known] == pytest.approx(share[best].tolist())
        for at, token in enumerate(best):
            assert ranks.ids[row, at] == token or not share[token]
        assert not ranks.shares[row, len(best) :].any()
        assert set(ranks.ids[row, len(best) :]) <= {-1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_of_equal_logits_the_first_stays_the_choice(dtype):
    logits = torch.zeros(3, 50, dtype=dtype)
    logits[1, 20:] = 1
    logits[2, [7, 30]] = 2
    tree = TokenTree.chain(0, [1, 2])
    for count in (1, 2, 5, 50):
        ranks = argmax.ranked(logits, [0], tree, count)
        assert ranks.ids[:, 0].tolist() == argmax(logits, [0], tree) == [0, 20, 7]
        assert all(len(set(row)) == count for row in ranks.ids.tolist())
    assert argmax.ranked(logits, [0], tree).ids[2].tolist() == [7, 30]
