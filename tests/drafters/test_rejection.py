"""Rejection sampling preserves the target's distribution, on a model small enough to enumerate."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from ouroboros.baselines import Speculative
from scipy.stats import chisquare
from tiny import TableModel, llama, mostly_slow, noisy, prompt_of

from ouroboros.core.select import NO_CHOICE, Head, Sampler
from ouroboros.decode import RootOnly, decode
from ouroboros.engine.model import CachedModel

IDS, LENGTH, RUNS = 4, 3, 3000
SETTINGS = [{}, {"temperature": 0.7}, {"temperature": 1.4, "top_p": 0.8}, {"top_k": 2}]


class Trimmed(TableModel):
    """A model whose head has the ids `ids` alone."""

    def score(self, sequence, tokens, tree):
        logits = super().score(sequence, tokens, tree)[:, self.ids]
        logits.head = Head(torch.tensor([*self.ids, NO_CHOICE]), self.ids[-1] + 1)
        return logits


def law_of(model: TableModel, prompt: list[int], settings: dict, eos=()) -> dict[tuple, float]:
    """The probability of every text of up to LENGTH tokens, from the model's table alone."""
    warped, law = Sampler(**settings), Counter()
    for text in itertools.product(range(IDS), repeat=LENGTH):
        p, tokens = 1.0, list(prompt)
        for token in text:
            p *= warped.warped(model.row(tokens)[None]).double().softmax(-1)[0, token].item()
            tokens.append(token)
            if token in eos:
                break
        law[tuple(tokens[len(prompt) :])] = p
    return law


@pytest.mark.parametrize("settings", mostly_slow(SETTINGS, quick=SETTINGS[:1]), ids=str)
@pytest.mark.parametrize(
    ("candidates", "confidence", "width", "max_len"),
    mostly_slow(
        [
            *[(1, 0.0, IDS, 64), (3, 0.0, IDS, 64), (2, 0.4, IDS - 1, 64), (2, 0.0, IDS, 3)],
            (2, 0.0, [1, 3], 64),
        ],
        quick=[(2, 0.4, IDS - 1, 64)],
    ),
    ids=["one", "three", "unsure and narrow", "context ends", "trimmed head"],
)
def test_over_seeds_the_law_of_whole_texts_is_the_targets(
    settings, candidates, confidence, width, max_len
):
    """With drafts that end early, a draft of fewer ids, drafts cut where the context ends, and a
    draft whose head has some ids alone (`width` lists them)."""
    target, draft = TableModel(IDS, seed=1), TableModel(IDS, seed=2)
    target.max_len = max_len + 1
    if isinstance(width, list):
        draft = Trimmed(IDS, seed=2)
        draft.ids = width
    else:
        draft.width = width
    drafter = Speculative(
        draft, gamma=3, verification="rejection", candidates=candidates, confidence=confidence
    )
    prompt, counts, accepted = [0, 1], Counter(), 0
    for seed in range(RUNS):
        choose = Sampler(seed=seed, **settings)
        trace = decode(target, drafter, prompt, max_new=LENGTH, eos={3}, choose=choose)
        counts[tuple(trace.new_tokens)] += 1
        accepted += sum(step.accepted for step in trace.steps)
    law = law_of(target, prompt, settings, eos={3})
    assert counts.keys() <= law.keys() and sum(law.values()) == pytest.approx(1)
    texts = sorted((t for t in law if law[t] > 0), key=lambda t: -law[t])
    assert all(law[text] > 0 for text in counts)
    expected = np.array([law[t] * RUNS for t in texts])
    found = np.array([counts[t] for t in texts], dtype=float)
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        found = np.append(found[~rare], found[rare].sum())
    assert chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-3
    assert accepted > RUNS / 10


def test_more_candidates_are_accepted_more_often():
    target, draft = TableModel(IDS, seed=1), TableModel(IDS, seed=2)
    rates = []
    for candidates in (1, 2, 4):
        drafter = Speculative(draft, gamma=3, verification="rejection", candidates=candidates)
        runs = [
            decode(target, drafter, [0, 1], max_new=20, choose=Sampler(seed=seed))
            for seed in range(40)
        ]
        steps = [step for run in runs for step in run.steps]
        rates.append(sum(s.accepted for s in steps) / sum(s.drafted for s in steps))
    assert rates == sorted(rates) and rates[2] > rates[0] + 0.05


def test_greedy_decoding_and_a_real_model_work_under_it():
    model = llama()
    target, draft = CachedModel(model), CachedModel(noisy(model))
    drafter = Speculative(draft, gamma=3, verification="rejection", candidates=2, confidence=0.2)
    prompt = prompt_of(6)
    plain = decode(target, RootOnly(), prompt, max_new=25).tokens
    assert decode(target, drafter, prompt, max_new=25).tokens == plain
    texts = set()
    for seed in (1, 1, 2):
        trace = decode(target, drafter, prompt, max_new=58, choose=Sampler(seed=seed))
        assert len(trace.new_tokens) == 58 and sum(step.accepted for step in trace.steps)
        texts.add(tuple(trace.tokens))
    assert len(texts) == 2


def test_what_cannot_be_is_refused():
    draft = TableModel(IDS, seed=1)
    drafter = Speculative(draft, gamma=2, verification="rejection")
    with pytest.raises(ValueError, match="supports no logits processors"):
        decode(draft, drafter, [0], max_new=2, choose=lambda *_: [0])
