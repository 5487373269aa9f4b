"""Runs that are killed, interrupted or partly failed, and folders in use: nothing is lost."""

from __future__ import annotations

import json
import lzma
import random
import time
from functools import partial

import pytest
from bench_models import Moody, Stop, TextTask, bench_of, ran
from ouroboros.baselines import Greedy, Racer, Speculative, SuffixDecoding, TokenRecycling
from processes import killed

from ouroboros import Ouroboros
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.folder import AUDIT, SAMPLES, ResultsFolder

KILLS = 20
TASK = TextTask(*("abcdefgh"[i:] * 3 for i in range(8)))
FACTS, OTHER = {"config": {"seed": 0}}, {"config": {"seed": 1}}


@pytest.fixture(scope="module")
def bench(pair):
    decoders = {
        "greedy": Greedy,
        "speculative": lambda: Speculative(pair[1], gamma=3),
        "ouroboros": lambda: Ouroboros(pair[1], pool_state="task", adapt=False),
        "suffix": lambda: SuffixDecoding(max_tokens=8, factor=4, state="task"),
        "recycling": lambda: TokenRecycling(state="task"),
        "racer": lambda: Racer(state="task"),
    }
    return bench_of(pair, TASK, decoders, repeats=2)


@pytest.fixture
def small(pair):
    """Two decoders, three prompts."""
    examples = TASK.load()[:3]
    return bench_of(pair[:1], TASK, {"greedy": Greedy, "other": Greedy}, examples=examples)


def counts(samples: list[Sample]) -> list:
    return [(s.key, [(t.drafted, t.accepted, t.scored) for t in s.steps]) for s in samples]


@pytest.mark.slow
def test_a_run_killed_twenty_times_is_the_run_that_never_was(bench, tmp_path):
    started = time.perf_counter()
    calm = ran(bench, tmp_path / "calm")
    length_s = time.perf_counter() - started
    expected = {s.key: (s.order, s.new_tokens) for s in calm.load_samples()}
    draw, kills, rounds = random.Random(7), 0, 0
    while kills < KILLS:
        rounds += 1
        folder = ResultsFolder(tmp_path / f"stormy{rounds}")
        path, resume = folder.path / SAMPLES, partial(ran, bench, folder.path)
        while kills < KILLS and killed(resume, draw.uniform(0.01, 0.6 * length_s)):
            kills += 1
            data = path.read_bytes() if path.exists() else b""
            before = data[: data.rfind(b"\n") + 1]
            assert len({s.key for s in folder.load_samples()}) == len(before.splitlines())
        data = path.read_bytes() if path.exists() else b""
        resume()
        assert path.read_bytes().startswith(data[: data.rfind(b"\n") + 1])
        samples = [Sample.from_dict(json.loads(line)) for line in path.read_text().splitlines()]
        assert {s.key: (s.order, s.new_tokens) for s in samples} == expected
        assert len(samples) == len(expected) and not any(s.error for s in samples)


def test_an_interrupted_run_with_carried_state_repeats_the_whole_one_step_by_step(bench, tmp_path):
    whole, parts = ran(bench, tmp_path / "whole"), ResultsFolder(tmp_path / "parts")
    while (have := len(parts.load_samples())) < bench.total:
        try:
            ran(bench, parts.path, seen=Stop(have + 40))
        except KeyboardInterrupt:
            assert parts.pool_path("ouroboros").exists()
    assert counts(parts.load_samples()) == counts(whole.load_samples())
    kept = {f"pool-{name}.json" for name in ("ouroboros", "suffix", "recycling", "racer")}
    assert {p.name for p in whole.path.glob("pool-*")} == kept


def test_failed_samples_are_measured_anew(pair, tmp_path, monkeypatch):
    examples = TASK.load()[:3]
    bench = bench_of(pair[:1], TASK, {"greedy": Greedy, "moody": Moody}, examples=examples)
    folder = ran(bench, tmp_path)
    assert [s.key for s in folder.load_samples() if s.error] == [("p0", "moody", 0)]
    monkeypatch.setattr(Moody, "bad", False)
    folder.save_run(folder.load_run(), status="finished")
    folder.append(AUDIT, {"verdicts": "of the samples so far"})
    seen = list[Sample]()
    ran(bench, tmp_path, seen=seen)
    assert not (tmp_path / AUDIT).exists()
    assert len(seen) == 6 and not any(s.error for s in folder.load_samples())
    assert folder.load_samples() == seen and seen[-1].key == ("p0", "moody", 0)
    assert len((tmp_path / SAMPLES).read_bytes().splitlines()) == 7


def test_other_settings_and_finished_runs_are_refused_unless_overwritten(tmp_path):
    folder = ResultsFolder(tmp_path)
    folder.open_run(FACTS)
    for name in ("notes.txt", "summary.md"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=r"other settings.*seed was 0, is 1.*overwrite=true"):
        folder.open_run(OTHER)
    assert folder.open_run(FACTS) == {**FACTS, "status": "running"}
    folder.save_run(folder.load_run(), status="finished")
    with pytest.raises(ValueError, match=r"already finished.*overwrite=true; 'ouroboros audit'"):
        folder.open_run(FACTS)
    folder.append(SAMPLES, {})
    assert ResultsFolder(tmp_path, overwrite=True).open_run(OTHER)["config"] == OTHER["config"]
    assert not (tmp_path / SAMPLES).read_text() and (tmp_path / "notes.txt").exists()
    assert not (tmp_path / "summary.md").exists()


def test_a_folder_in_use_is_not_changed_and_an_empty_one_removed(small, tmp_path):
    folder = ran(small, tmp_path, facts=FACTS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused = pytest.raises(ValueError, match="another run is writing here")
    with ResultsFolder(tmp_path).locked(), refused, folder.locked():
        pytest.fail("locked twice")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    new = ResultsFolder(tmp_path / "new" / "run")
    with new.locked():
        assert new.path.exists()
    assert not (tmp_path / "new").exists()
    with new.locked():
        new.open_run({})
    assert new.load_run()["status"] == "running"


def test_packed_samples_are_read_and_not_appended_to(small, tmp_path):
    folder = ran(small, tmp_path)
    samples, path = folder.load_samples(), tmp_path / SAMPLES
    path.with_name(f"{SAMPLES}.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    assert folder.load_samples() == samples
    with pytest.raises(ValueError, match="with xz -d to resume"):
        folder.append(SAMPLES, {})
    packed = path.with_name(f"{SAMPLES}.xz")
    packed.write_bytes(packed.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"samples.jsonl.xz is damaged"):
        folder.load_samples()
