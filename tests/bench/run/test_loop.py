"""The run loop: order, failures, scores, sampling, recorded trees."""

import json
from dataclasses import replace

import numpy as np
import pytest
from bench_models import TextTask, bench_of, ran, tiny_pair
from composing import composed
from measured import step
from pretended_cuda import pretend

from ouroboros.bench.metrics.sample import step_s
from ouroboros.bench.run import folder as folders
from ouroboros.bench.run import loop
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import FAILURES, SAMPLES, SCORES, TREES
from ouroboros.core.select import argmax
from ouroboros.core.trace import DecodeTrace, cut
from ouroboros.core.tree import TokenTree
from ouroboros.decode import RootOnly
from ouroboros.decoder_factory import decoder_factories
from ouroboros.engine.static import Static


class Counting(TextTask):
    """Scores the number of characters, and counts how often it was asked."""

    asked = 0

    def score(self, example, completion):
        self.asked += 1
        return {"chars": np.float32(len(completion))}


class Broken(RootOnly):
    """Fails on the prompt "xx"."""

    def propose(self, tokens, budget):
        if len(tokens) == 2 and tokens[0] == tokens[1]:
            raise RuntimeError("no draft for /very/secret/place here\nsecond line")
        return super().propose(tokens, budget)


class Guess(RootOnly):
    """Proposes three siblings, two of which the target chooses now and then."""

    def propose(self, tokens, budget):
        branches = [[241], [26], [5]] if budget > 1 else []
        return TokenTree.chain(tokens[-1], ()).graft(branches, source="draft")


class Sure(Guess):
    """Says how likely each node is."""

    def propose(self, tokens, budget):
        tree = super().propose(tokens, budget)
        return replace(tree, probability=(1.0, 0.5, 0.25, 0.125)[: len(tree)])


BOTH = {"greedy": RootOnly, "other": RootOnly}


def job(pair, decoders=BOTH, **changes):
    return bench_of(pair[:1], Counting("x", "xx", "xxx", max_new=6), decoders, **changes)


def test_decoders_alternate_and_rotate(pair):
    turns = [(*(e.id for e in batch), name, order) for name, _, order, batch in job(pair).batches()]
    assert turns == [
        ("p0", "greedy", 0),
        ("p0", "other", 1),
        ("p1", "other", 0),
        ("p1", "greedy", 1),
        ("p2", "greedy", 0),
        ("p2", "other", 1),
    ]


def test_every_sample_is_a_line_and_a_second_run_adds_none(pair, tmp_path):
    first, again = [], []
    folder = ran(job(pair, repeats=2), tmp_path, seen=first)
    assert len(first) == 12 and not any(s.error for s in first)
    assert all(s.ttft_s <= s.wall_s and len(s.new_tokens) == 6 for s in first)
    assert all(sum(map(step_s, s.steps)) == pytest.approx(s.wall_s) for s in first)
    ran(job(pair, repeats=2), tmp_path, seen=again)
    assert folder.load_samples() == first == again


def test_a_failure_is_a_row_without_paths_and_the_run_goes_on(pair, tmp_path):
    folder = ran(job(pair, {"greedy": RootOnly, "other": Broken}), tmp_path)
    (failed,) = [s for s in folder.load_samples() if s.error]
    assert (failed.key, failed.new_tokens) == (("p1", "other", 0), ())
    assert failed.error == "RuntimeError: no draft for place here" and failed.prompt_tokens == 2
    (line,) = (tmp_path / FAILURES).read_text().splitlines()
    row = json.loads(line)
    assert row["key"] == ["p1", "other", 0] and "second line" in row["traceback"]
    assert "/very/secret" not in row["traceback"]


def test_equal_completions_are_scored_once_and_scoring_resumes(pair, tmp_path):
    bench = job(pair)
    folder = ran(bench, tmp_path)
    bench.score(folder, {})
    assert bench.task.asked == 3
    scores = folder.load_scores()
    assert len(scores) == 6 and all("chars" in row for row in scores.values())
    lines = (tmp_path / SCORES).read_text().splitlines(keepends=True)
    (tmp_path / SCORES).write_text("".join(lines[:5]))
    bench.score(folder, {})
    assert folder.load_scores() == scores


def test_a_score_that_fails_costs_only_itself(pair, tmp_path, monkeypatch):
    bench, score = job(pair), Counting.score
    folder = ran(bench, tmp_path)
    monkeypatch.setattr(
        Counting, "score", lambda *asked: score(*asked) if asked[1].id != "p1" else 1 / 0
    )
    assert bench.score(folder, {}) == "p1: ZeroDivisionError: division by zero"
    assert {key[0] for key in folder.load_scores()} == {"p0", "p2"}
    monkeypatch.setattr(Counting, "score", lambda *asked: {"f1": float("nan")})
    assert bench.score(folder, {}) == "p1: ValueError: the score f1 is no finite number"


def test_samples_start_from_empty_caches_and_decoders_that_saw_no_warm_up(pair, tmp_path):
    made, fed = [], []

    class Watching(RootOnly):
        def __init__(self):
            self.prompts = 0
            made.append(self)

        def reset(self, choose):
            self.prompts += 1
            fed.append(len(pair[0].resident.tokens))

    folder = ran(job(pair, {"greedy": Watching, "other": RootOnly}), tmp_path)
    assert [decoder.prompts for decoder in made] == [1, 3] and not any(fed)
    assert {s.example for s in folder.load_samples()} == {"p0", "p1", "p2"}


def test_sampling_is_shared_by_decoders_and_differs_by_prompt_and_sample(pair, tmp_path):
    bench = job(pair, repeats=2, sampling=Sampling(seed=3, temperature=1.5))
    samples = {s.key: s.new_tokens for s in ran(bench, tmp_path).load_samples()}
    assert samples["p0", "greedy", 0] == samples["p0", "other", 0]
    assert samples["p0", "greedy", 0] != samples["p0", "greedy", 1]
    assert Sampling().choose("p0", 0, vocab=9) is argmax


def test_cut_shortens_the_step_that_went_too_far_and_drops_later_ones():
    trace = DecodeTrace([9, 1, 2, 3, 4, 5, 6], 1, [step(4, 1), step(4, 2), step(4, 0)])
    short = cut(trace, 4)
    assert short.new_tokens == [1, 2, 3, 4] and short.finish == "stop"
    sources = [("draft", "target"), ("draft", "draft")]
    assert [(s.new, s.accepted, s.sources) for s in short.steps] == [(2, 1, s) for s in sources]
    assert cut(trace, 2).steps == trace.steps[:1]


DRAFTERS = {"greedy": RootOnly, "guess": Guess, "sure": Sure}


def test_trees_with_probabilities_are_kept_for_the_first_repeat(pair, tmp_path):
    bench = job(pair, DRAFTERS, repeats=2)
    folder = ran(bench, tmp_path)
    trees, samples = folder.load_trees(), {s.key: s for s in folder.load_samples()}
    assert set(trees) == {(f"p{i}", "sure", 0) for i in range(3)}
    for key, steps in trees.items():
        assert len(steps) == len(samples[key].steps)
        text = [t for one in steps for t in (*(one.tree.tokens[n] for n in one.path[1:]), one.then)]
        assert text == list(samples[key].new_tokens)
        assert steps[0].tree.probability == (1.0, 0.5, 0.25, 0.125)
        assert steps[0].tree.source == ("", "draft", "draft", "draft")
    assert any(len(one.path) > 1 for steps in trees.values() for one in steps)
    line = json.loads((tmp_path / TREES).read_text().splitlines()[0])
    assert line["sources"] == ["", "draft"] and "probe" not in line["steps"][0]
    lines = (tmp_path / SAMPLES).read_text().splitlines(keepends=True)
    (tmp_path / SAMPLES).write_text("".join(lines[:4]))
    (tmp_path / TREES).write_text((tmp_path / TREES).read_text()[:-20])
    assert set(folder.load_trees()) < set(trees)
    assert ran(bench, tmp_path).load_trees() == trees


def test_trees_of_every_drafter_come_with_predictions_until_their_file_is_full(
    pair, tmp_path, monkeypatch
):
    bench = job(pair, DRAFTERS, record_predictions=True)
    folder = ran(bench, tmp_path)
    assert {name for _, name, _ in folder.load_trees()} == {"guess", "sure"}
    assert {name for _, name, _ in folder.load_predictions()} == {"greedy", "guess", "sure"}
    monkeypatch.setattr(folders, "MOST_TREE_BYTES", 1)
    assert len(ran(bench, tmp_path / "full").load_trees()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_graph_is_captured_in_a_timed_text(tmp_path, monkeypatch, temperature):
    """Calls are captured before the warm-up, choices of every size during it."""
    pretend(monkeypatch)
    monkeypatch.setattr("ouroboros.core.select._best", lambda scores: scores.argmax(-1))
    captures, untimed = [], []
    capture = Static._capture
    monkeypatch.setattr(Static, "_capture", lambda *a: captures.append(a) or capture(*a))

    def answers(*given):
        untimed.extend(captures)
        return Answers(*given)

    Answers = loop.Answers
    monkeypatch.setattr(loop, "Answers", answers)
    target, draft = tiny_pair()
    for model in (target, draft):
        model.engine = Static(model.model, model.engine.info, model.cache)
        model.engine.graphs = True
    configs = composed("experiment=gpu_headline", "model.standin=null")["decoder"]
    made = decoder_factories(configs, draft, adapt=False)
    task = TextTask("abcab " * 40, "x", "hello hello", max_new=64)
    bench = bench_of((target, draft), task, made, sampling=Sampling(temperature=temperature))
    samples = ran(bench, tmp_path).load_samples()
    assert not any(s.error for s in samples) and len(samples) == bench.total
    assert len({s.new_tokens for s in samples if s.example == "p0"}) == 1
    assert len(captures) == len(untimed) > 0
