"""Measuring calls on tiny models: which calls are timed; no time is asserted."""

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from bench_models import tiny_pair
from tiny import CONTEXT, llama

from ouroboros import CachedModel
from ouroboros.costs import Costs, timing
from ouroboros.costs.costs import NOISY, PROBED_NODES, PROBES
from ouroboros.costs.timing import copy_bandwidth, footprint, time_calls
from ouroboros.engine.sequence import CachedSequence
from ouroboros.engine.static import NODES


class Clocked:
    """A model whose calls take the milliseconds of a table, on a clock that it turns itself."""

    vocab_size, max_len, engine, prefill_limit, exact = 50, 4096, None, 200, False

    def __init__(self, clock: list[float], ms, log: list) -> None:
        self.clock, self.ms, self.log = clock, ms, log
        self.cache = SimpleNamespace(reserve=lambda slots: None, clear=lambda: None)
        self.device = torch.device("cpu")

    def new_sequence(self, cached=()):
        return CachedSequence(tokens=list(cached))

    def empty(self):
        pass

    def score(self, sequence, tokens, tree):
        if not sequence.tokens and len(tokens) > 1:  # a prompt is read
            self.clock[0] += 1e-3 * self.ms(len(tokens), len(tokens))
            return torch.zeros(1, self.vocab_size)
        assert sequence.tokens == tokens[:-1]
        self.clock[0] += 1e-3 * self.ms(len(tree), len(tokens))
        self.log.append((self, len(tokens), len(tree)))
        return torch.zeros(len(tree), self.vocab_size)


@pytest.fixture
def clocked(monkeypatch) -> Callable[..., tuple[list[Clocked], Callable[[], float], list]]:
    def make(*tables):
        clock, log = [0.0], []
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
        return [Clocked(clock, ms, log) for ms in tables], lambda: clock[0], log

    return make


def test_times_of_the_cpu_kernels_do_not_decrease_with_nodes(clocked):
    ms = {1: 7.0, 2: 9.0, 4: 8.0, 8: 10.0}
    (model, other), _, _ = clocked(lambda n, c: ms[n], lambda n, c: ms[n])
    model.exact = True
    found = time_calls([model, other], nodes=list(ms), contexts=[30], visits=1, repeats=1)
    assert found[0].ms[30] == pytest.approx({1: 7.0, 2: 8.5, 4: 8.5, 8: 10.0})
    assert found[1].ms[30] == pytest.approx(ms)


def test_medians_of_what_the_clock_says(clocked):
    hiccups = iter([900.0, 0, 0, 0] * 99)  # once for each size and context
    (target, draft), _, log = clocked(lambda n, c: n + c / 10, lambda n, c: 2 + next(hiccups))
    found = time_calls([target, draft], nodes=[8, 1], contexts=[30, 10], visits=3, repeats=2)
    assert found[0].ms[10] == pytest.approx({1: 2, 8: 9})
    assert found[0].ms[30] == pytest.approx({1: 4, 8: 11})
    assert found[1].call_ms(5, 9) == pytest.approx(2)
    assert {c: list(row) for c, row in found[1].spread_ms.items()} == {10: [1, 8], 30: [1, 8]}
    steps = [log[at : at + 3] for at in range(4, len(log), 3)]
    assert len(steps) == 24
    assert all([model for model, *_ in step] == [target, draft, draft] for step in steps)
    assert len({tuple(size for *_, size in step) for step in steps}) > 4, "in another order"


def test_real_models_are_timed_without_feeding_a_prompt():
    models, sequences = tiny_pair(), []
    for model in models:
        new = model.new_sequence
        model.new_sequence = lambda new=new, **o: sequences.append(new(**o)) or sequences[-1]
    found = time_calls(models, nodes=[4, 1], contexts=[9, 5], visits=1, repeats=1)
    assert all(ms > 0 for surface in found for row in surface.ms.values() for ms in row.values())
    assert len(sequences) == len(models) * 3
    assert not any(own.caught_up for own in sequences)


def test_a_probe_covers_a_pair_within_its_limit(clocked):
    (target, draft), clock, _ = clocked(lambda n, c: 40 + n, lambda n, c: 10 + n / 5)
    costs = Costs.measure(target, draft, context=700)
    assert clock() < 6 and list(costs.target.ms) == [700]
    assert costs.target.call_ms(64, 300) == pytest.approx(104) and costs.draft is not None
    assert costs.draft.call_ms(8, 700) == pytest.approx(11.6)
    assert costs.reading_ms == pytest.approx({64: 22.8, 200: 50}), "as much as the draft reads"
    found = [costs.draft_reading_ms(tokens, 700) for tokens in (32, 132, 400)]
    assert found == pytest.approx([11.4, 36.4, 100])
    assert costs.target.call_ms(30, 1) == pytest.approx(70), "between two sizes"
    assert Costs.measure(target).draft is None
    far = Costs.measure(target, context=8000).target
    assert list(far.ms) == [1000, 4000], "a tree of 96 nodes still fits"


def test_a_probe_of_a_gpu_knows_its_floors(clocked, monkeypatch):
    (target,), _, _ = clocked(lambda n, c: 1.0)
    monkeypatch.setattr(timing, "floors", lambda models: {"copy_bytes_per_s": 5.0})
    assert Costs.measure(target).copy_bytes_per_s is None
    target.device = torch.device("cuda")
    assert Costs.measure(target).copy_bytes_per_s == 5.0


@pytest.mark.parametrize(("ms", "rounds"), [(1, 5), (110, 3), (300, 1), (3000, 1)])
def test_a_probe_of_slow_calls_has_fewer_rounds(clocked, ms, rounds):
    (target,), _, log = clocked(lambda n, c: ms)
    Costs.measure(target)
    assert len(log) == (1 + rounds) * len(PROBED_NODES), "and one of each size before, untimed"


@pytest.mark.parametrize(("noisy_calls", "probes"), [(0, 1), (60, 2), (9999, PROBES)])
def test_a_noisy_probe_is_repeated_and_the_steadiest_counts(clocked, noisy_calls, probes):
    draw, log = random.Random(1), []

    def ms(nodes: int, context: int) -> float:
        return 5.0 * (draw.choice([1, 3, 9]) if len(log) < noisy_calls else 1)

    (target,), _, log = clocked(ms)
    costs = Costs.measure(target)
    assert len(log) == probes * 6 * len(PROBED_NODES)
    assert costs.about["spread"] == 0 or (probes == PROBES and costs.about["spread"] > NOISY)


def test_a_probe_of_an_engine_that_pads_times_its_sizes():
    model = CachedModel(llama(), engine="static")
    costs = Costs.measure(model, context=500)
    (row,) = costs.target.ms.values()
    assert list(row) == [size for size in NODES if size <= CONTEXT] and costs.target.padded
    assert costs.target.call_ms(13, 1) == row[16]
    assert not Costs.measure(CachedModel(llama())).target.padded


def test_what_cannot_be_measured_is_one_line():
    with pytest.raises(ValueError, match="64 positions: measure shorter contexts"):
        time_calls([CachedModel(llama())], nodes=[1, 8], contexts=[64])


def test_bytes_of_a_model():
    model = llama(dtype=torch.float32)
    found = footprint(CachedModel(model))
    assert found.weight_bytes == sum(w.numel() * 4 for w in model.parameters())
    assert found.read_bytes == found.weight_bytes - 4 * 13 * 16
    assert found.kv_bytes_per_token == 4 * 1 * 2 * (4 + 4)
    tied = footprint(CachedModel(llama(tie_word_embeddings=True)))
    assert tied.read_bytes == tied.weight_bytes


def test_copies_have_a_bandwidth(monkeypatch):
    monkeypatch.setattr("ouroboros.costs.timing.CPU_BYTES", 1 << 16)
    assert copy_bandwidth(torch.device("cpu")) > 0
