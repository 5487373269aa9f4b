"""Runs that are killed, interrupted, moved or partly failed: nothing finished is lost or mixed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_models import Moody, tiny_pair
from ouroboros.baselines import Greedy, Speculative

from ouroboros import Ouroboros
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.folder import SAMPLES, ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.run import stop_requests
from ouroboros.bench.tasks.task import Example

KILLS = 20
SIZES = {"gamma": 3, "window_size": 2, "ngram_size": 3, "verification_set_size": 3}


class Letters:
    """Prompts of letters, not scored."""

    name, version, licence, max_new, stop = "letters", "1", "none", 12, ()

    def load(self):
        return [Example(f"p{i}", "abcdefgh"[i:] * 3) for i in range(8)]

    def score(self, example, completion):
        return {}


@pytest.fixture(scope="module")
def bench() -> Bench:
    target, draft = tiny_pair()
    task = Letters()
    decoders = {
        "greedy": Greedy,
        "speculative": lambda: Speculative(draft, gamma=3),
        "ouroboros": lambda: Ouroboros(draft, pool_state="task"),
    }
    return Bench(target, [target, draft], task, task.load(), decoders, task.max_new, repeats=2)


def opened(path: Path, **changes) -> ResultsFolder:
    folder = ResultsFolder(path)
    folder.open_run({}, **changes)
    return folder


def no_more(sample: Sample) -> None:
    """Sees a sample."""


def killed(work: Callable[[], None], after_s: float) -> bool:
    """Run `work` in a forked process, kill -9 it after some seconds; return False if it ended."""
    worker = os.fork()
    if not worker:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(worker, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(worker, 0)[1])


def whole_lines(path: Path) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


@pytest.mark.slow
def test_a_run_killed_twenty_times_is_the_run_that_never_was(bench, tmp_path):
    calm = opened(tmp_path / "calm")
    started = time.perf_counter()
    bench.run(calm, no_more)
    length_s = time.perf_counter() - started
    expected = {s.key: (s.order, s.new_tokens) for s in calm.load_samples()}
    draw, kills, rounds = random.Random(7), 0, 0
    while kills < KILLS:
        rounds += 1
        folder = ResultsFolder(tmp_path / f"stormy{rounds}")

        def resume(folder=folder) -> None:
            folder.open_run({})
            bench.run(folder, no_more)

        path = folder.path / SAMPLES
        while kills < KILLS and killed(resume, draw.uniform(0.01, 0.6 * length_s)):
            kills += 1
            before, kept = whole_lines(path), folder.load_samples()
            assert len({s.key for s in kept}) == len(before.splitlines())
        before = whole_lines(path)
        resume()
        assert path.read_bytes().startswith(before)
        samples = [Sample.from_dict(json.loads(line)) for line in path.read_text().splitlines()]
        assert {s.key: (s.order, s.new_tokens) for s in samples} == expected
        assert len(samples) == len(expected) and not any(s.error for s in samples)
    assert kills == KILLS


def test_a_carried_pool_is_taken_up_again(bench, tmp_path):
    """Interrupted between samples, a run with a carried pool repeats the whole run step by step."""

    def counts(samples: list[Sample]) -> list:
        return [(s.key, [(t.drafted, t.accepted, t.scored) for t in s.steps]) for s in samples]

    whole, parts = opened(tmp_path / "whole"), opened(tmp_path / "parts")
    bench.run(whole, no_more)
    while len(parts.load_samples()) < bench.total:
        seen = len(parts.load_samples())

        def stop_after_seven(sample, seen=seen):
            if len(parts.load_samples()) >= seen + 7:
                raise KeyboardInterrupt

        try:
            bench.run(parts, stop_after_seven)
        except KeyboardInterrupt:
            assert parts.pool_path("ouroboros").exists()
    assert counts(parts.load_samples()) == counts(whole.load_samples())
    assert [p.name for p in whole.path.glob("pool-*")] == ["pool-ouroboros.json"]
    whole.drop_pools()
    assert not list(whole.path.glob("pool-*"))


def test_the_first_ctrl_c_waits_for_the_sample_and_the_second_does_not(capfd):
    before = signal.getsignal(signal.SIGINT)
    with stop_requests(b"stopping") as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked() and capfd.readouterr().err == "stopping"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert not capfd.readouterr().err and signal.getsignal(signal.SIGINT) is before


def test_failed_samples_are_measured_anew_only_when_asked(tmp_path, monkeypatch):
    target, task = tiny_pair()[0], Letters()
    bench = Bench(target, [target], task, task.load()[:3], {"greedy": Greedy, "moody": Moody}, 4)
    folder = opened(tmp_path)
    bench.run(folder, no_more)
    assert [s.key for s in folder.load_samples() if s.error] == [("p0", "moody", 0)]
    with pytest.raises(ValueError, match="finished"):
        folder.save_run(folder.load_run(), status="finished")
        folder.check_open({})
    lines = whole_lines(tmp_path / SAMPLES)
    monkeypatch.setattr(Moody, "bad", False)
    bench.run(folder, no_more)
    assert whole_lines(tmp_path / SAMPLES) == lines
    folder.open_run({}, retry_failed=True)
    seen = []
    bench.run(folder, seen.append, retry_failed=True)
    assert len(seen) == 6 and not any(s.error for s in folder.load_samples())
    assert folder.load_samples() == seen and seen[-1].key == ("p0", "moody", 0)
    assert len(whole_lines(tmp_path / SAMPLES).splitlines()) == 7
    folder.save_run(folder.load_run(), status="finished")
    with pytest.raises(ValueError, match=r"no sample failed.*results_dir"):
        folder.check_open({}, retry_failed=True)


class Grumpy(Ouroboros):
    """Fails on its third prompt, the first being the warm-up of another object, while `bad`."""

    bad, prompts = True, 0

    def reset(self, choose):
        self.prompts += 1
        if self.bad and self.prompts == 3:
            raise RuntimeError("not today")
        super().reset(choose)


def test_a_retried_sample_has_the_pool_that_the_run_carried(tmp_path, monkeypatch):
    (target, draft), task = tiny_pair(), Letters()
    made = {"grumpy": lambda: Grumpy(draft, pool_state="task")}
    bench = Bench(target, [target, draft], task, task.load()[:3], made, 12)
    folder = opened(tmp_path)
    bench.run(folder, no_more)
    assert [s.key for s in folder.load_samples() if s.error] == [("p2", "grumpy", 0)]
    folder.drop_pools()
    assert folder.pool_path("grumpy").exists()
    monkeypatch.setattr(Grumpy, "bad", False)
    bench.run(folder, no_more, retry_failed=True)
    assert not any(s.error for s in folder.load_samples())
    folder.drop_pools()
    assert not folder.pool_path("grumpy").exists()


def test_a_resume_in_another_environment_is_refused_in_one_line(tmp_path):
    def facts(torch: str) -> dict:
        return {"provenance": {"versions": {"torch": torch}, "machine": {"threads": 2}}}

    folder = ResultsFolder(tmp_path)
    folder.open_run(facts("2.13"))
    assert folder.check_open(facts("2.13"))
    reason = r"environment \(torch was 2.13, is 2.14\): resume it as it was, use another"
    with pytest.raises(ValueError, match=reason) as refusal:
        folder.open_run(facts("2.14"))
    assert "\n" not in str(refusal.value) and folder.load_run()["resumed"] == 0
    folder.open_run(facts("2.14"), overwrite=True)
    assert folder.load_run()["provenance"] == facts("2.14")["provenance"]
