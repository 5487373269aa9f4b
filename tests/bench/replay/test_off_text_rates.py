"""Replays with simulated predictions: exact if no prediction is read, otherwise an estimate."""

import copy
from dataclasses import replace

import pytest
import torch
from bench_models import replay_run
from ouroboros.baselines import Lookahead, PromptLookup, Speculative
from tiny import CONTEXT, VOCAB, TableModel, prompt_of

from ouroboros import Ouroboros
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.replay import USUAL_RATES, OffTextRates, RecordedChoice
from ouroboros.bench.run.tree_recorder import Recorder
from ouroboros.decode import RootOnly, decode
from ouroboros.tree import TokenTree

MAX_NEW = 40


def pair(seed: int = 0) -> tuple[TableModel, TableModel]:
    target = TableModel(VOCAB, seed=seed)
    draft = copy.deepcopy(target)
    draft.dtype = torch.float32
    noise = torch.randn(draft.table.shape, generator=torch.Generator().manual_seed(seed + 7))
    draft.table = draft.table + 0.5 * noise
    return target, draft


def recorded_by(target, prompts, **known) -> RecordedRuns:
    """Plain decoding of some prompts."""
    runs = []
    for name, prompt in prompts.items():
        trace = decode(target, RootOnly(), prompt, max_new=MAX_NEW, eos=(2,))
        runs.append(RecordedRun(name, tuple(prompt), tuple(trace.new_tokens), trace.finish))
    return RecordedRuns(
        runs, max_new=MAX_NEW, max_len=CONTEXT, vocab_size=VOCAB, eos=frozenset([2])
    )


PROMPTS = {str(seed): prompt_of(8, seed) for seed in range(6)}


def steps(trace):
    return [replace(s, draft_s=0, verify_s=0, host_s=0, wait_s=0) for s in trace.steps]


def window(size: int = 4, **options) -> Lookahead:
    return Lookahead(window_size=size, ngram_size=3, verification_set_size=3, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda draft: RootOnly(),
        lambda draft: PromptLookup(max_ngram_size=2, num_tokens=5),
        lambda draft: window(0),
        lambda draft: Speculative(draft, gamma=6, confidence=0.4),
        lambda draft: Ouroboros(draft, recycle=False, guard=False),
    ],
)
def test_drafters_that_learn_from_the_text_are_exact(make):
    target, draft = pair()
    recorded = recorded_by(target, PROMPTS)
    for run in recorded.runs:
        live = decode(target, make(draft), run.prompt, max_new=MAX_NEW, eos=(2,))
        found = replay_run(make(draft), recorded, run, rates=OffTextRates(0.0, 0.0))
        assert found.new_tokens == run.new_tokens
        assert steps(found) == steps(live)


def test_a_window_is_estimated_and_better_predictions_help_it():
    recorded = recorded_by(pair()[0], PROMPTS)

    def calls(rates: OffTextRates) -> int:
        found = 0
        for run in recorded.runs:
            one, again = (replay_run(window(), recorded, run, rates=rates) for _ in range(2))
            assert one.new_tokens == run.new_tokens and steps(one) == steps(again)
            found += len(one.steps)
        return found

    assert calls(OffTextRates(1.0, 1.0)) < calls(USUAL_RATES) <= calls(OffTextRates(0.0, 0.0))


def test_rates_are_counted_from_recorded_predictions():
    """Text 5 6 7 8; off it after (5), the tokens 9 7: 7 stands where 7 is right."""
    known = {(1, (9,)): 7, (1, (9, 7)): 8, (1, (9, 9)): 3, (2, (4,)): 8}
    run = RecordedRun("a", (5,), (6, 7, 8), predictions=known)
    assert OffTextRates.measured([run]) == OffTextRates(after_right=1.0, after_wrong=2 / 3)
    assert OffTextRates.measured([replace(run, predictions={})]) is None


def test_rates_of_a_live_run_lie_between_none_and_all():
    target, _ = pair()
    runs = []
    for name, prompt in PROMPTS.items():
        recorder = Recorder(window())
        trace = decode(target, recorder, prompt, max_new=MAX_NEW)
        known = recorder.predictions(trace.new_tokens)
        runs.append(RecordedRun(name, tuple(prompt), tuple(trace.new_tokens), predictions=known))
    found = OffTextRates.measured(runs)
    assert found is not None and 0 < found.after_wrong < found.after_right <= 1


def test_a_question_asked_twice_has_one_answer():
    run = RecordedRun("a", (5, 6), (7, 8, 9, 10))
    tree = TokenTree.chain(6, [7, 3, 4]).graft([(3, 4)], at=0)
    one, other = (RecordedChoice(run, USUAL_RATES)(torch.empty(0), [5, 6], tree) for _ in range(2))
    assert one == other and one[:2] == [7, 8]
