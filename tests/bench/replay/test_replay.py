"""A replay without the target has the live run's counts, step by step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from bench_models import TextTask, replay_run, tiny_pair
from ouroboros.baselines import (
    Greedy,
    HFGenerate,
    Lookahead,
    PromptLookup,
    Racer,
    Speculative,
    SuffixDecoding,
    TokenRecycling,
)
from tiny import SIZES, mostly_slow

from ouroboros import CachedModel, Ouroboros, OuroborosPaper
from ouroboros.bench.replay.recording import of_folder, read_recording
from ouroboros.bench.replay.replay import check_drafter
from ouroboros.bench.replay.scripted import Drafting
from ouroboros.bench.run.config import RunConfig, Sampling
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.run.run import run_facts
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.core.select import argmax


def letters(stop=()) -> TextTask:
    prompts = (("abcdefgh"[i:] + "xyz"[: i % 4]) * 3 for i in range(5))
    return TextTask(*prompts, max_new=40, stop=stop)


def decoders(draft: CachedModel) -> dict:
    return {
        "greedy": Greedy,
        "confident": lambda: Speculative(draft, gamma=6, confidence=0.3),
        "adaptive": lambda: PromptLookup(max_ngram_size=2, num_tokens=9, adaptive=True),
        "suffix_task": lambda: SuffixDecoding(max_tokens=8, factor=3, branches=True, state="task"),
        "suffix_hybrid": lambda: SuffixDecoding(draft, max_tokens=8, threshold=2, gamma=3),
        "pool_only": lambda: Lookahead(**{**SIZES, "window_size": 0}),
        "unlearning": lambda: Ouroboros(draft, recycle=False, adapt=False),
    }


def readers(draft: CachedModel) -> dict:
    return {
        "lookahead": lambda: Lookahead(**SIZES),
        "ouroboros": lambda: Ouroboros(draft, runners_up=False, adapt=False),
        "carrying": lambda: Ouroboros(draft, runners_up=False, pool_state="task", adapt=False),
        "paper": lambda: OuroborosPaper(draft, gamma=4, **SIZES),
    }


def recorded(path, pair, made: dict, task=None, **changes) -> tuple:
    """Run live; return the folder, and what gives the token ids of each prompt."""
    task = task or letters()
    job = Bench(pair[0], list(pair), task, task.load(), made, task.max_new)
    job = replace(job, **changes)
    folder = ResultsFolder(path)
    config = RunConfig(
        model=PairSpec("tiny", "t", "d"),
        task=TaskSpec("prompts"),
        decoder={"greedy": {"_target_": "ouroboros.baselines.Greedy"}},
        timing=False,
    )
    facts = run_facts(config, job)
    folder.open_run(facts)
    list(job.run(folder))
    prompts = {e.id: list(job.target.tokenizer(e.prompt).input_ids) for e in job.examples}
    return folder, lambda example, repeat: prompts[example]


def counts(steps) -> list[tuple]:
    return [(s.drafted, s.scored, s.accepted, s.new, s.draft_calls, s.sources) for s in steps]


def assert_replayed(folder: ResultsFolder, prompts, made: dict, decoder=None) -> list[str]:
    """Every decoder's replay equals its live samples; return how the runs ended."""
    live = {s.key: s for s in folder.load_samples()}
    for name, make in made.items():
        runs = of_folder(folder, prompts)[decoder or name]
        drafter = make()
        for recording in runs.runs:
            trace = replay_run(drafter, runs, recording)
            sample = live[recording.example, name, recording.repeat]
            assert trace.new_tokens == sample.new_tokens
            assert trace.finish == sample.finish
            assert counts(trace.steps) == counts(sample.steps), (name, recording.example)
    return [s.finish for s in live.values()]


@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_a_long_prompt_takes_the_forward_passes_of_the_recorded_engine(tmp_path, engine):
    pair = [
        CachedModel(model.model, tokenizer=model.tokenizer, engine=engine) for model in tiny_pair()
    ]
    made = {"greedy": Greedy, "paper": readers(pair[1])["paper"]}
    task = TextTask("abcab" * 40, max_new=6)
    folder, prompts = recorded(tmp_path, pair, made, task, record_predictions=True)
    live = {s.decoder: s.steps for s in folder.load_samples()}
    for name, make in made.items():
        runs = of_folder(folder, prompts)[name]
        steps = replay_run(make(), runs, runs.runs[0]).steps
        assert runs.engine == engine
        assert [s.target_forwards for s in steps] == [s.target_forwards for s in live[name]]


HOT = Sampling(seed=5, temperature=1.2, top_k=50)
PENALIZED = Sampling(repetition_penalty=1.3)
LIVE = list(product((Sampling(), HOT, PENALIZED), (1, 7, 40)))


@pytest.mark.parametrize(("sampling", "max_new"), mostly_slow(LIVE, quick=[LIVE[4], LIVE[6]]))
def test_a_replay_is_the_live_run(pair, tmp_path, sampling, max_new):
    made = decoders(pair[1])
    repeats = 2 if sampling.temperature else 1
    folder, prompts = recorded(
        tmp_path, pair, made, max_new=max_new, sampling=sampling, repeats=repeats
    )
    ends = assert_replayed(folder, prompts, made, decoder="greedy")
    assert set(ends) == {"length"} and len(ends) == 5 * repeats * len(made)
    live = folder.load_samples()
    assert max_new == 1 or sum(t.accepted for s in live for t in s.steps) > 10


def test_ends_at_eos(pair, tmp_path, monkeypatch):
    made = decoders(pair[1])
    folder, _ = recorded(tmp_path / "plain", pair, {"greedy": Greedy})
    said = [s.new_tokens[9 + 3 * n] for n, s in enumerate(folder.load_samples())]
    monkeypatch.setattr(pair[0].model.generation_config, "eos_token_id", said)
    assert "eos" in assert_replayed(*recorded(tmp_path / "ends", pair, made), made, "greedy")


def test_ends_at_the_context(pair, tmp_path, monkeypatch):
    made = decoders(pair[1])
    monkeypatch.setattr(pair[0], "max_len", 40)
    assert set(assert_replayed(*recorded(tmp_path, pair, made), made, "greedy")) == {"context"}


BOTH = [Sampling(), HOT]


@pytest.mark.parametrize("sampling", mostly_slow(BOTH, quick=[HOT]), ids=["greedy", "sampled"])
def test_ends_at_a_stop_string(pair, tmp_path, sampling):
    folder, _ = recorded(tmp_path / "plain", pair, {"greedy": Greedy}, sampling=sampling)
    texts = [s.text for s in folder.load_samples()]
    task = letters([text[n : n + 2] for text, n in zip(texts, (5, 9, 12, 17), strict=False)])
    made = decoders(pair[1])
    folder, prompts = recorded(tmp_path / "stops", pair, made, task, sampling=sampling)
    assert "stop" in assert_replayed(folder, prompts, made, decoder="greedy")


@pytest.mark.slow
@pytest.mark.parametrize("sampling", BOTH, ids=["greedy", "sampled"])
def test_drafters_that_read_rejected_nodes_replay_from_recorded_predictions(
    pair, tmp_path, sampling
):
    plain, _ = recorded(tmp_path / "plain", pair, {"greedy": Greedy}, sampling=sampling)
    task = letters([plain.load_samples()[0].text[9:11]])
    made = readers(pair[1])
    how = {"sampling": sampling, "record_predictions": True}
    assert_replayed(*recorded(tmp_path / "all", pair, made, task, **how), made)


@pytest.fixture(scope="module")
def plain(pair, tmp_path_factory) -> tuple:
    """Greedy's runs, and the folder and prompts they came from."""
    folder, prompts = recorded(
        tmp_path_factory.mktemp("plain"), pair, {"greedy": Greedy}, record_predictions=True
    )
    return of_folder(folder, prompts)["greedy"], folder, prompts


class Sly(Speculative):
    """Reads predictions without saying so."""

    def observe(self, tree, chosen, path):
        self.seen = list(chosen[: len(tree)])


ANOTHER_DTYPE = r"recording was made in bfloat16: give model\.dtype=bf"
REFUSED = {
    "HFGenerate is another engine": (lambda draft: HFGenerate(), {}),
    "^Lookahead learns from .*record_predictions=true": (lambda draft: Lookahead(**SIZES), {}),
    "^Ouroboros learns from .*record_predictions=true": (Ouroboros, {}),
    "TokenRecycling learns from the target's 8 best tokens": (lambda draft: TokenRecycling(), {}),
    "Racer learns from the target's 8 best tokens": (lambda draft: Racer(), {}),
    "Sly asks for a prediction": (lambda draft: Sly(draft, gamma=4), {}),
    "Speculative accepts by rejection sampling": (
        lambda draft: Speculative(draft, gamma=3, verification="rejection"),
        {"sampling": HOT},
    ),
    ANOTHER_DTYPE: (lambda draft: Speculative(draft, gamma=3), {"dtype": "bfloat16"}),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_a_recording_cannot_answer_is_refused_by_name(pair, plain, says):
    make, changes = REFUSED[says]
    runs = replace(plain[0], **changes)
    with pytest.raises(ValueError, match=says):
        for run in runs.runs:
            replay_run(make(pair[1]), runs, run)


def test_lengths_and_other_predictions_are_refused_with_the_remedy(pair, plain):
    runs, folder, _ = plain
    check_drafter(Speculative(pair[1], gamma=3), replace(runs, dtype=None))
    check_drafter(Greedy(), replace(runs, dtype="bfloat16"))
    trace = replay_run(Speculative(pair[1], gamma=3), runs, runs.runs[0], max_new=9)
    assert trace.new_tokens == runs.runs[0].new_tokens[:9]
    with pytest.raises(ValueError, match="was recorded up to 40 tokens: max_new=41"):
        replay_run(Greedy(), runs, runs.runs[0], max_new=41)
    some = replace(runs.runs[0], predictions={(1, (2,)): 3})
    with pytest.raises(ValueError, match="Lookahead asks for a prediction that the recording"):
        replay_run(Lookahead(**SIZES), replace(runs, runs=[some]), some)
    with pytest.raises(ValueError, match="p0 has 1 prompt tokens here"):
        of_folder(folder, lambda example, repeat: [1])


def test_texts_of_rejection_sampling_are_not_replayed(pair, tmp_path):
    """Their noise is not the replay's, so a draft model would agree less often than it does."""
    rejecting = partial(Speculative, pair[1], gamma=3, verification="rejection")
    made = {"greedy": Greedy, "speculative": rejecting}
    folder, prompts = recorded(tmp_path, pair, made, sampling=HOT)
    run, own = folder.load_run(), {"verification": "rejection"}
    folder.save_run({**run, "config": {"decoder": {"speculative": own}}}, status="finished")
    assert list(of_folder(folder, prompts)) == ["greedy"]
    folder.save_run({**run, "config": {"decoder": dict.fromkeys(made, own)}}, status="finished")
    with pytest.raises(ValueError, match="has no texts sampled with shared noise: record greedy"):
        of_folder(folder, prompts)


def test_texts_of_another_engine_are_read(pair, tmp_path):
    text = tmp_path / "other engine.jsonl"
    text.write_text(
        '{"prompt": "ab", "completion": "c"}\n\n{"id": 7, "prompt": "d", "completion": ""}'
    )
    tokenizer = pair[0].tokenizer
    found = read_recording(text, tokenizer)["greedy"].runs
    assert [(r.example, r.finish) for r in found] == [("other engine/1", "stop"), ("7", "stop")]
    assert [tokenizer.decode(r.prompt) for r in found] == ["ab", "d"]
    assert [tokenizer.decode(r.new_tokens) for r in found] == ["c", ""]


def test_a_recording_of_another_tokenizer_is_refused(pair, tmp_path):
    """Its ids would mean other texts."""
    folder = ResultsFolder(tmp_path)
    folder.open_run({"model": {"tokenizer": "theirs"}, "config": {"task": {"task": "none"}}})
    with pytest.raises(ValueError, match="was recorded with another tokenizer: give its model"):
        read_recording(folder.path, pair[0].tokenizer)


def test_a_replayed_drafter_observes_as_in_a_live_run():
    drafter = Ouroboros(adapt=False)
    replayed = Drafting(drafter, argmax)
    for name in ("observe", "observe_ranked", "observe_step", "set_batch", "propose"):
        assert getattr(replayed, name) == getattr(drafter, name), name
