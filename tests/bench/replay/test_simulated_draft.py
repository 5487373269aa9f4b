"""A simulated draft gives the same logits in any order of calls, at its agreement and
confidence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from bench_models import repeating_text, replay_run
from ouroboros.baselines import Speculative
from tiny import SIZES, Session, mostly_slow

from ouroboros import Ouroboros, OuroborosPaper, argmax
from ouroboros.bench.replay import simulated_draft
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.simulated_draft import CHOICES, NOWHERE, SimulatedDraft, read_curve
from ouroboros.bench.run.config import Sampling
from ouroboros.tree import ROOT, TokenTree

VOCAB = 400
RUNS = [repeating_text(seed) for seed in range(12)]
RECORDED = RecordedRuns(RUNS, vocab_size=VOCAB)
SHORT = [repeating_text(seed, 140) for seed in range(3)]


def drafted(agreement, **options) -> SimulatedDraft:
    return SimulatedDraft(agreement, RECORDED, **options)


def along(draft: SimulatedDraft, run: RecordedRun) -> torch.Tensor:
    """What the draft says before each new token, [tokens, vocab]."""
    draft.follow(run.tokens)
    tree = TokenTree.chain(run.prompt[-1], run.new_tokens[:-1])
    return draft.score(draft.new_sequence(), run.prompt, tree).clone()


def ranks(draft: SimulatedDraft) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Over all texts: the truth's rank, the five best probabilities, whether the text repeats."""
    found, shares, again = [], [], []
    for run in RUNS:
        logits = along(draft, run)
        truth = logits.gather(1, torch.tensor(run.new_tokens)[:, None])
        rank = 1 + (logits > truth).sum(1)
        found += [r if r <= CHOICES else NOWHERE for r in rank.tolist()]
        shares += logits.double().softmax(-1).topk(CHOICES).values.tolist()
        again += simulated_draft.repeats(run.tokens)[len(run.prompt) :]
    return np.array(found), np.array(shares), np.array(again)


@pytest.mark.parametrize("agreement", [0.6, 0.88])
def test_it_is_as_right_and_as_sure_as_it_says(agreement):
    draft = drafted(agreement)
    found, shares, again = ranks(draft)
    slack = 4 * math.sqrt(agreement * (1 - agreement) / len(found))
    assert abs((found == 1).mean() - agreement) < slack
    right = [(found == 1)[again == known].mean() for known in (False, True)]
    odds = right[1] / (1 - right[1]) * (1 - right[0]) / right[0]
    assert 0.7 < odds / draft.errors.odds < 1.5
    misses = found[found != 1]
    for rank, share in draft.errors.shares.items():
        assert abs((misses == rank).mean() - share) < 0.06
    for rank in (1, 2, NOWHERE):
        wanted = np.mean([row[0] for row in draft.errors.confidence[rank]])
        assert abs(shares[found == rank][:, 0].mean() - wanted) < 0.08
    assert shares[found == 1][:, 0].mean() > shares[found != 1][:, 0].mean() + 0.2


def test_a_better_draft_is_right_wherever_a_worse_one_is():
    never, worse, better, always = (ranks(drafted(a))[0] == 1 for a in (0.0, 0.6, 0.8, 1.0))
    assert (better | ~worse).all() and better.sum() > worse.sum()
    assert always.all() and not never.any()


def test_the_same_answers_in_every_order():
    """One call for all, one call for each token backwards, and through `roll`."""
    draft, run = drafted(0.7), RUNS[0]
    whole, again = along(draft, run), along(drafted(0.7), run)
    assert torch.equal(whole, again)
    assert not torch.equal(whole, along(drafted(0.7, seed=1), run))
    other = Session(drafted(0.7))
    other.on.follow(run.tokens)
    for at in reversed(range(40)):
        text = run.tokens[: len(run.prompt) + at]
        assert torch.equal(other.score(text, TokenTree.chain(text[-1], ()))[0], whole[at])
    start, text = list(run.prompt), list(run.prompt)
    for _ in range(8):
        text += argmax(other.score(text, TokenTree.chain(text[-1], ())), text, ROOT)
    calls, scored = other.calls, other.scored
    assert other.roll(start, 8, argmax) == text[len(start) :]
    assert (other.calls, other.forwards, other.scored) == (calls + 8, calls + 8, scored + 8)


def test_a_tree_that_grows_is_counted_once():
    draft, run = Session(drafted(0.7)), RUNS[0]
    draft.on.follow(run.tokens)
    root, *rest = run.tokens[19:24]
    draft.score(run.prompt, TokenTree.chain(root, rest[:2]))
    grown = TokenTree.chain(root, rest).with_logits_at(range(3, 5))
    assert draft.score(run.prompt, grown).shape == (2, VOCAB)
    assert draft.scored == 5 and draft.calls == 2
    draft.accept([0])
    draft.score(run.prompt, grown)
    assert draft.scored == 10


def test_off_the_text_it_knows_no_more_than_chance():
    draft, hits, asked = drafted(1.0), 0, 0
    for run in RUNS[:5]:
        draft.follow(run.tokens)
        for at in range(len(run.prompt), len(run.tokens) - 2):
            wrong = 3 + (run.tokens[at] - 2) % (VOCAB - 3)
            tree = TokenTree.chain(run.tokens[at - 1], [wrong])
            logits = draft.score(draft.new_sequence(), run.tokens[:at], tree)
            assert int(logits[0].argmax()) == run.tokens[at] != wrong
            hits += int(logits[1].argmax()) == run.tokens[at + 1]
            asked += 1
    assert hits / asked < 0.02


DRAFTERS = {
    "speculative": lambda draft: Speculative(draft, gamma=6, confidence=0.3),
    "ouroboros": lambda draft: Ouroboros(draft, recycle=False),
    "paper": lambda draft: OuroborosPaper(draft, gamma=3, **SIZES, recycle=False),
}


@pytest.mark.parametrize("name", mostly_slow(DRAFTERS, quick=["speculative"]))
def test_replays_are_lossless_and_the_same_twice(name):
    for agreement in (0.0, 0.8):
        draft = drafted(agreement)
        for run in SHORT:
            first, again = (replay_run(DRAFTERS[name](draft), RECORDED, run) for _ in range(2))
            assert first.new_tokens == again.new_tokens == run.new_tokens
            counts = [[(s.new, s.accepted, s.draft_calls) for s in t.steps] for t in (first, again)]
            assert counts[0] == counts[1]


def test_more_agreement_means_fewer_calls():
    drafters = [Speculative(drafted(a), gamma=4) for a in (0.3, 0.6, 0.9)]
    low, middle, high = (
        sum(len(replay_run(drafter, RECORDED, run).steps) for run in SHORT) for drafter in drafters
    )
    assert low > middle > high
    certain = replay_run(Speculative(drafted(1.0), gamma=4), RECORDED, RUNS[0]).steps[:-1]
    assert {(step.drafted, step.accepted) for step in certain} == {(4, 4)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[0.9, 0.6, 0.3]"),
        ("b.json", '{"spec_decode_per_position_acceptance_rates": [0.9, 0.6, 0.3]}'),
        ("c.json", "[1.9, 2.5, 2.8]"),
        ("d.csv", "position,rate\n1,0.9\n2,0.6\n3,0.3\n"),
    ],
)
def test_a_curve_is_read_from_each_format(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_curve(tmp_path / name) == pytest.approx([0.9, 0.6, 0.3])


def test_drafts_are_accepted_by_position_as_the_curve_says():
    curve = [0.9, 0.6, 0.3]
    draft = Speculative(drafted(curve), gamma=3)
    steps = [step for run in RUNS for step in replay_run(draft, RECORDED, run).steps]
    accepted = np.array([step.accepted for step in steps if step.drafted == 3])
    found = [(accepted >= k).mean() for k in (1, 2, 3)]
    assert found == pytest.approx(curve, abs=4 * math.sqrt(0.25 / len(accepted)))


@pytest.mark.parametrize("curve", ["[]", "{}", "[0.5, 0.6]", "[0.5, -0.1]", "none", '["a"]'])
def test_a_file_that_is_no_curve_is_refused(tmp_path, curve):
    (tmp_path / "curve.json").write_text(curve)
    with pytest.raises(ValueError, match=r"curve\.json: give|share for each draft position"):
        drafted(read_curve(tmp_path / "curve.json"))


def test_what_it_refuses_and_how_it_is_named():
    assert "at agreement 0.9, 0.6 by position (" in drafted([0.9, 0.6]).title
    assert drafted(0.88).title.startswith("draft simulated at agreement 0.88 (ranks and")
    shipped = simulated_draft.DraftErrorModel.load()
    assert shipped.source == "ranks and confidences of the reference pair"
    with pytest.raises(ValueError, match="temperature 0"):
        hot = RecordedRuns(RUNS, Sampling(temperature=0.8), vocab_size=VOCAB)
        replay_run(Speculative(drafted(0.8), gamma=2), hot, RUNS[0])
    with pytest.raises(ValueError, match=r"agreement=1\.5"):
        drafted(1.5)
    with pytest.raises(ValueError, match="vocabulary 20 ids"):
        SimulatedDraft(0.5, replace(RECORDED, vocab_size=20))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_rates_keep_the_agreement(share):
    elsewhere, at_repeats = simulated_draft.rates_at(0.8, 3.0, share)
    assert share * at_repeats + (1 - share) * elsewhere == pytest.approx(0.8)
