"""From where a draft pays, and costs at a ratio."""

import pytest

from ouroboros.bench.metrics.intervals import Interval
from ouroboros.costs import Costs, Surface
from ouroboros.tuning.agreement import DraftValue, pays_from, with_ratio


def value(decoder, agreement, speedup) -> DraftValue:
    return DraftValue("all", "flat", 0.18, decoder, agreement, Interval(speedup), 3)


VALUES = [
    value("lookup", None, 1.4),
    value("suffix", None, 2.0),
    *(value("chain", a, s) for a, s in ((0.8, 2.5), (0.6, 1.5), (0.7, 1.9))),
    *(value("tree", a, s) for a, s in ((0.6, 2.1), (0.8, 3.0))),
    *(value("late", a, s) for a, s in ((0.6, 1.1), (0.8, 1.9))),
]


def test_where_a_draft_pays():
    assert pays_from(VALUES) == {
        "chain": (pytest.approx(0.7 + 0.1 / 6), False),
        "tree": (0.6, True),
        "late": (None, False),
    }


def test_the_draft_is_scaled_and_nothing_else():
    costs = Costs(
        Surface({256: {1: 8, 4: 12}, 1024: {1: 16, 4: 24}}),
        Surface({256: {1: 2, 4: 3}, 1024: {1: 4, 4: 6}}),
        {"": 1.0},
        50.0,
    )
    found = with_ratio(costs, 0.3)
    assert found.draft is not None and not found.host_ms and not found.prefill_ms
    one, four = (found.target.call_ms(n, 9000) for n in (1, 4))
    assert four == pytest.approx(1.5 * one) == pytest.approx(costs.target.call_ms(4, 512))
    assert found.draft.call_ms(1, 9000) == pytest.approx(0.3 * one)
    assert found.draft.call_ms(4, 9000) == pytest.approx(0.45 * one)
    constant = Costs(Surface.flat({1: 1.0, 64: 1.0}), Surface.constant(0.18))
    again = with_ratio(constant, 0.3)
    assert again.draft is not None and again.draft.call_ms(40, 10) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="no draft"):
        with_ratio(Costs(Surface.constant(1.0)), 0.3)
