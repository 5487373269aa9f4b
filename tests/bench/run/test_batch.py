"""Benchmarks of batches: texts, counts, times, failures, resuming."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from bench_models import Stop, TextTask, bench_of, ran
from ouroboros.baselines import (
    AdaptiveSpeculative,
    Greedy,
    HFGenerate,
    Racer,
    SuffixDecoding,
    TokenRecycling,
)
from tiny import DRAFTERS, mostly_slow

from ouroboros.bench.metrics.sample import step_s
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import FAILURES, SAMPLES
from ouroboros.calls import alone as alone_
from ouroboros.core.select import argmax
from ouroboros.costs import Costs, Surface
from ouroboros.decode import RootOnly, proposed

PROMPTS = ["abcab", "x", "hello hello", "q" * 40, "zyx zyx zyx", "defdef", "1"]


def decoders(draft) -> dict:
    others = {
        "hf_greedy": HFGenerate,
        "adaptive": lambda: AdaptiveSpeculative(draft, gamma=4, costs="epyc"),
        "suffix": lambda: SuffixDecoding(max_tokens=8, factor=4),
        "racer": Racer,
    }
    return {name: partial(make, draft) for name, make in DRAFTERS.items()} | others


def job(pair, made=None, *, stop=(), **options):
    task = TextTask(*PROMPTS, max_new=10, stop=stop)
    return bench_of(pair, task, made or decoders(pair[1]), **options)


def counts(samples, name: str) -> dict:
    """What the text and the drafter's settings determine."""
    rows = [s for s in samples if s.decoder == name]
    return {
        s.key: [(t.drafted, t.scored, t.accepted, t.draft_calls) for t in s.steps] for s in rows
    }


@pytest.fixture(
    scope="module", params=mostly_slow([0.0, 0.8], quick=[0.8]), ids=["greedy", "sampled"]
)
def alone(request, pair, tmp_path_factory):
    """The samples of a run whose prompts are decoded one by one, and their sampling."""
    sampling = Sampling(temperature=request.param)
    folder = ran(job(pair, stop=("e",), sampling=sampling), tmp_path_factory.mktemp("alone"))
    return folder.load_samples(), sampling


@pytest.mark.parametrize("refill", mostly_slow([False, True], quick=[True]))
def test_every_decoder_has_the_texts_and_counts_of_each_prompt_alone(pair, alone, tmp_path, refill):
    expected, sampling = alone
    bench = job(pair, stop=("e",), sampling=sampling, batch_size=3, refill=refill)
    found = ran(bench, tmp_path).load_samples()
    assert not any(s.error for s in (*found, *expected)) and len(found) == bench.total
    texts = {(s.example, s.new_tokens, s.text, s.finish) for s in expected}
    assert {(s.example, s.new_tokens, s.text, s.finish) for s in found} == texts
    assert len(texts) == len(PROMPTS)
    for name in bench.decoders.keys() - {"ouroboros", "adaptive"}:  # as large as pays
        assert counts(found, name) == counts(expected, name)


def test_the_times_of_rows_add_up_to_their_batchs(pair, tmp_path):
    """Static: three batches of a decoder, each to its last row. Refilled: one stream."""
    made = {name: decoders(pair[1])[name] for name in ("greedy", "hf_greedy", "speculative")}
    for refill, batches in ((False, 9), (True, 3)):
        bench = job(pair, made, batch_size=3, refill=refill, stop=("no such text",))
        found = ran(bench, tmp_path / str(refill)).load_samples()
        assert {s.batch for s in found} == set(range(1, batches + 1))
        for number in range(1, batches + 1):
            rows = [s for s in found if s.batch == number]
            wall_s = max(s.ended_s for s in rows)
            assert sum(s.wall_s for s in rows) == pytest.approx(wall_s, rel=0.05)
            for s in rows:
                assert s.batch_size == 3 and 0 <= s.began_s < s.ended_s
                assert 0 < s.ttft_s <= s.wall_s <= 1.001 * wall_s
                latency_s = sum(t.rows * step_s(t) for t in s.steps)
                assert 0 < latency_s <= s.ended_s - s.began_s + 1e-9
                if s.decoder != "hf_greedy":  # whose end belongs to no step
                    assert latency_s == pytest.approx(s.ended_s - s.began_s)
                    assert sum(map(step_s, s.steps)) == pytest.approx(s.wall_s)
        full = [t.rows for s in found if s.key == ("p0", "greedy", 0) for t in s.steps]
        assert full == [3] * 10
        waited = any(s.began_s for s in found if s.decoder == "greedy")
        assert waited is refill


def test_the_adaptive_draft_is_as_long_as_pays(pair):
    """Long where it is accepted and calls are flat, short where not, none where nodes cost."""
    ms = {1: 10.0, 16: 10.0, 32: 20.0, 64: 40.0}
    drafter = AdaptiveSpeculative(pair[1], costs=Costs(Surface.flat(ms), Surface.constant(1.0)))
    text, lengths = list(range(40)), []
    for size, accepts in ((1, True), (16, True), (1, False), (1, True)):
        drafter.reset(argmax)
        drafter.set_batch(size, 0)
        for _ in range(12):
            tree = alone_(proposed(drafter, text, 30))
            path = range(len(tree)) if accepts else [0]
            drafter.observe(tree, [0] * len(tree), list(path))
        lengths.append(len(tree) - 1)
    assert lengths[:2] == [12, 0] and lengths[2] <= 1 and lengths[3] == 12


@pytest.mark.parametrize(("read_ms", "drafts"), [(1.0, True), (1000.0, False)])
def test_the_adaptive_draft_reads_a_prompt_only_if_that_pays(pair, read_ms, drafts):
    flat = Surface.flat({1: 10.0, 16: 10.0}), Surface.constant(1.0)
    drafter = AdaptiveSpeculative(pair[1], costs=Costs(*flat, reading_ms={64.0: read_ms}))
    drafter.reset(argmax)
    assert (len(alone_(proposed(drafter, list(range(40)), 30))) > 1) is drafts


class Broken(RootOnly):
    """Fails in the second step of a prompt that begins as "hello" does."""

    def propose(self, tokens, budget):
        if tokens[0] == self.bad and budget == 9:
            raise RuntimeError("no draft")
        return super().propose(tokens, budget)


@pytest.mark.parametrize("refill", [False, True])
def test_a_row_that_fails_leaves_the_others(pair, tmp_path, refill, monkeypatch):
    monkeypatch.setattr(Broken, "bad", pair[0].tokenizer("h").input_ids[0], raising=False)
    bench = job(pair, {"greedy": Greedy, "other": Broken}, batch_size=3, refill=refill)
    found = {s.key: s for s in ran(bench, tmp_path).load_samples()}
    (failed,) = [s for s in found.values() if s.error]
    assert failed.key == ("p2", "other", 0) and failed.error == "RuntimeError: no draft"
    assert "no draft" in (tmp_path / FAILURES).read_text()
    for (example, _, _), sample in found.items():
        assert sample is failed or sample.new_tokens == found[example, "greedy", 0].new_tokens


@pytest.mark.parametrize("refill", mostly_slow([False, True], quick=[True]))
def test_a_run_that_was_cut_off_goes_on_where_it_was(pair, tmp_path, refill):
    made = {name: decoders(pair[1])[name] for name in ("greedy", "speculative")}
    bench = job(pair, made, batch_size=3, refill=refill)
    whole = {s.key: s.new_tokens for s in ran(bench, tmp_path / "whole").load_samples()}
    path, have = tmp_path / "parts", 0
    while have < bench.total:
        with suppress(KeyboardInterrupt):
            ran(bench, path, seen=Stop(have + 4))
        have = len((path / SAMPLES).read_bytes().splitlines())
    folder = ran(bench, path)
    assert {s.key: s.new_tokens for s in folder.load_samples()} == whole
    assert have == bench.total


def test_what_decodes_one_by_one_is_refused_in_batches(pair):
    for name, made in (
        ("assisted", lambda: HFGenerate("assisted", pair[1])),
        ("carried", lambda: TokenRecycling(state="task")),
    ):
        with pytest.raises(ValueError, match=rf"batch_size=3: {name} decodes one prompt at a time"):
            job(pair, {name: made}, batch_size=3)
        job(pair, {name: made})
