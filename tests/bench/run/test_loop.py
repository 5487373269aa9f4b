"""The run loop: order, resume after a kill or a torn line, refusals, failures, interruption."""

from dataclasses import replace

import pytest
from bench_models import tiny_pair

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.config import Sampling, derive_seed
from ouroboros.bench.run.folder import SAMPLES, SCORES, ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.tasks.task import Example
from ouroboros.decode import RootOnly
from ouroboros.select import argmax


class Counting:
    """A task that scores the number of characters, and counts how often it was asked."""

    name, version, licence, max_new, stop = "counting", "1", "none", 6, ()

    def __init__(self):
        self.asked = 0

    def load(self):
        return [Example(f"p{i}", "x" * (i + 1)) for i in range(3)]

    def score(self, example, completion):
        self.asked += 1
        return {"chars": float(len(completion))}


class Broken(RootOnly):
    """Fails on the prompt "xx"."""

    def propose(self, tokens, budget):
        if len(tokens) == 2 and tokens[0] == tokens[1]:
            raise RuntimeError("no draft for /very/secret/place here\nsecond line")
        return super().propose(tokens, budget)


@pytest.fixture(scope="module")
def target():
    return tiny_pair()[0]


def job(target, **changes) -> Bench:
    task = Counting()
    decoders = {"greedy": RootOnly, "other": RootOnly}
    made = Bench(target, [target], task, task.load(), decoders, task.max_new)
    return replace(made, **changes)


def run(bench: Bench, folder: ResultsFolder) -> list[Sample]:
    seen: list[Sample] = []
    bench.run(folder, seen.append)
    return seen


FACTS, OTHER = {"config": {"seed": 0}}, {"config": {"seed": 1}}


def folder_at(path) -> ResultsFolder:
    folder = ResultsFolder(path)
    folder.open_run(FACTS)
    return folder


def test_decoders_alternate_and_rotate(target):
    turns = [(e.id, name, order) for e, name, _, order in job(target).turns()]
    assert turns == [
        ("p0", "greedy", 0),
        ("p0", "other", 1),
        ("p1", "other", 0),
        ("p1", "greedy", 1),
        ("p2", "greedy", 0),
        ("p2", "other", 1),
    ]


def test_every_sample_is_a_line_and_a_second_run_adds_none(target, tmp_path):
    folder = folder_at(tmp_path)
    first = run(job(target, repeats=2), folder)
    assert len(first) == 12 and not any(s.error for s in first)
    assert all(s.ttft_s <= s.wall_s and len(s.new_tokens) == 6 for s in first)
    assert folder.load_samples() == first
    assert run(job(target, repeats=2), folder) == first


def test_resume_after_a_kill_drops_the_torn_line_only(target, tmp_path):
    folder = folder_at(tmp_path)
    whole = run(job(target), folder)
    path = tmp_path / SAMPLES
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    assert folder.load_samples() == whole[:3]
    resumed = run(job(target), folder)
    assert [(s.key, s.order, s.new_tokens) for s in resumed] == [
        (s.key, s.order, s.new_tokens) for s in whole
    ]
    assert resumed[:3] == whole[:3]
    assert len(path.read_bytes().splitlines()) == 6


def test_a_damaged_line_in_the_middle_is_named(target, tmp_path):
    folder = folder_at(tmp_path)
    run(job(target), folder)
    path = tmp_path / SAMPLES
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{broken\n" + lines[2])
    with pytest.raises(ValueError, match="line 2"):
        folder.load_samples()


def test_other_settings_and_finished_runs_are_refused_unless_overwritten(tmp_path):
    folder = folder_at(tmp_path)
    (tmp_path / SAMPLES).write_text("")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"other settings.*seed was 0, is 1.*overwrite=true"):
        folder.open_run(OTHER)
    assert folder.open_run(FACTS)["resumed"] == 1
    folder.save_run(folder.load_run(), status="finished")
    with pytest.raises(ValueError, match=r"finished.*overwrite=true"):
        folder.open_run(FACTS)
    assert folder.open_run(OTHER, overwrite=True)["resumed"] == 0
    assert not (tmp_path / SAMPLES).read_text() and (tmp_path / "notes.txt").exists()


def test_a_failure_is_a_row_without_paths_and_the_run_goes_on(target, tmp_path):
    folder = folder_at(tmp_path)
    samples = run(job(target, decoders={"greedy": RootOnly, "other": Broken}), folder)
    failed = [s for s in samples if s.error]
    assert [(s.key, s.new_tokens) for s in failed] == [(("p1", "other", 0), ())]
    assert failed[0].error == "RuntimeError: no draft for place here"
    assert failed[0].prompt_tokens == 2


def test_ctrl_c_keeps_what_is_there(target, tmp_path):
    folder = folder_at(tmp_path)

    def stop_after_two(sample):
        if sample.key == ("p0", "other", 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(target).run(folder, stop_after_two)
    assert len(folder.load_samples()) == 2
    assert len(run(job(target), folder)) == 6


def test_two_runs_cannot_write_into_one_folder(tmp_path):
    folder = folder_at(tmp_path)
    with (
        folder.locked(),
        pytest.raises(ValueError, match="another run"),
        ResultsFolder(tmp_path).locked(),
    ):
        pass


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_in_use_is_not_opened_and_not_changed(target, tmp_path, overwrite):
    folder = folder_at(tmp_path)
    run(job(target), folder)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with ResultsFolder(tmp_path).locked(), pytest.raises(ValueError, match="another run"):
        folder.open_run(FACTS, overwrite=overwrite)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_equal_completions_are_scored_once_and_scoring_resumes(target, tmp_path):
    folder, bench = folder_at(tmp_path), job(target)
    run(bench, folder)
    bench.score(folder, lambda: None)
    assert bench.task.asked == 3
    scores = folder.load_scores()
    assert len(scores) == 6 and all("chars" in row for row in scores.values())
    lines = (tmp_path / SCORES).read_text().splitlines(keepends=True)
    (tmp_path / SCORES).write_text("".join(lines[:5]))
    bench.score(folder, lambda: None)
    assert folder.load_scores() == scores


def test_caches_are_empty_before_each_sample(target, tmp_path):
    fed = []

    class Watching(RootOnly):
        def reset(self, choose):
            fed.append(target.resident)

    run(job(target, decoders={"greedy": Watching, "other": Watching}), folder_at(tmp_path))
    assert fed and not any(fed)


def test_warm_up_leaves_no_trace_in_what_is_measured(target, tmp_path):
    made = []

    class Carrying(RootOnly):
        def __init__(self):
            self.prompts = 0
            made.append(self)

        def reset(self, choose):
            self.prompts += 1

    folder = folder_at(tmp_path)
    samples = run(job(target, decoders={"greedy": Carrying, "other": RootOnly}), folder)
    assert [decoder.prompts for decoder in made] == [1, 3]
    assert {s.example for s in samples} == {"p0", "p1", "p2"}


def test_sampling_is_shared_by_decoders_and_differs_by_prompt_and_sample(target, tmp_path):
    bench = job(target, repeats=2, sampling=Sampling(seed=3, temperature=1.5))
    samples = {s.key: s.new_tokens for s in run(bench, folder_at(tmp_path))}
    assert samples["p0", "greedy", 0] == samples["p0", "other", 0]
    assert samples["p0", "greedy", 0] != samples["p0", "greedy", 1]
    assert Sampling().choose("p0", 0, vocab=9) is argmax
    assert len({derive_seed(s, e, n) for s in (0, 1) for e in "ab" for n in (0, 1)}) == 8
    assert 0 <= derive_seed(0, "a", 0) < 2**62
