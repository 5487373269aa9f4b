"""A run at a smaller gamma, from the records of one at a larger: the very counts."""

import copy
from dataclasses import replace

import pytest
import torch
from tiny import VOCAB, TableModel, prompt_of

from ouroboros.baselines import Lookahead, Speculative
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.replay.truncation import truncated
from ouroboros.choose import Sampler, argmax
from ouroboros.decode import decode

MAX_NEW = 40


def pair(seed: int, noise: float = 0.7) -> tuple[TableModel, TableModel]:
    """A target and a draft that agrees with it now and then."""
    target = TableModel(VOCAB, seed=seed)
    draft = copy.deepcopy(target)
    step = torch.randn(draft.table.shape, generator=torch.Generator().manual_seed(seed + 99))
    draft.table = draft.table + noise * step
    return target, draft


def run(seed: int, gamma: int, *, eos=(), choose=argmax, **options) -> Sample:
    """One speculative run, its times forgotten."""
    target, draft = pair(seed)
    drafter = Speculative(draft, gamma=gamma, **options)
    trace = decode(target, drafter, prompt_of(6, seed), max_new=MAX_NEW, eos=eos, choose=choose)
    steps = (replace(s, draft_s=0.0, verify_s=0.0, host_s=0.0, wait_s=0.0) for s in trace.steps)
    return Sample("e", "s", 0, 0, 6, tuple(trace.new_tokens), steps=tuple(steps))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eos", [(), (2,)])
def test_every_smaller_gamma_is_exact(seed, eos):
    whole = run(seed, MAX_NEW, eos=eos)
    for gamma in range(1, 13):
        found = truncated(whole, gamma, max_new=MAX_NEW, recorded=MAX_NEW)
        assert found.steps == run(seed, gamma, eos=eos).steps


def test_sampling_with_shared_noise_is_exact_too():
    def noise() -> Sampler:
        return Sampler(temperature=0.8, seed=5)

    whole = run(1, MAX_NEW, choose=noise())
    for gamma in (1, 3, 6):
        found = truncated(whole, gamma, max_new=MAX_NEW, recorded=MAX_NEW)
        assert found.steps == run(1, gamma, choose=noise()).steps


def test_steps_of_a_cut_off_draft_are_close():
    """With a recorded gamma of 6, only what follows a bonus token is drawn."""
    known, real = 0, 0
    for seed in range(12):
        found = truncated(run(seed, 6), 4, max_new=MAX_NEW, recorded=6, seed=seed)
        assert sum(step.new for step in found.steps) == MAX_NEW
        known += len(found.steps)
        real += len(run(seed, 4).steps)
    assert known == pytest.approx(real, rel=0.08)


def test_a_recorded_gamma_gives_its_own_steps_back():
    sample = run(3, 5)
    assert truncated(sample, 5, max_new=MAX_NEW, recorded=5).steps == sample.steps


def test_a_confidence_ends_drafts_where_it_did():
    whole = run(2, MAX_NEW, confidence=0.5)
    small = truncated(whole, 2, max_new=MAX_NEW, recorded=MAX_NEW)
    assert max(step.drafted for step in small.steps) <= 2
    assert sum(step.new for step in small.steps) == MAX_NEW


def test_other_records_are_refused():
    sample = run(0, 4)
    with pytest.raises(ValueError, match="gamma 5 must be from 1 to 4"):
        truncated(sample, 5, max_new=MAX_NEW, recorded=4)
    target, _ = pair(0)
    drafter = Lookahead(window_size=2, ngram_size=3, verification_set_size=2)
    trace = decode(target, drafter, prompt_of(6), max_new=9)
    with pytest.raises(ValueError, match="only chains drafted token by token"):
        truncated(replace(sample, steps=tuple(trace.steps)), 2, max_new=9, recorded=4)
