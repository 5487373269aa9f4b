"""The scaling law and what is predicted of devices, against figures by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scaling import best_widths, law_of

from ouroboros.costs import Costs, Surface

NAMES = ("decoder", "nodes", "tokens", "accepted", "draft_calls", "draft_nodes", "parts")
NARROW = dict(zip(NAMES, ("x", 16.0, 2.0, 1.0, 0.0, 0.0, {1: 16.0, 2: 9.0, 4: 5.0}), strict=True))
WIDE = dict(zip(NAMES, ("x", 64.0, 3.0, 2.0, 0.0, 0.0, {1: 64.0, 2: 33.0, 4: 17.0}), strict=True))
LINE = [{**NARROW, "nodes": 2.0**n, "tokens": 1 + 0.5 * n} for n in range(1, 5)]
STEEP = Costs(Surface.flat({1: 1.0, 16: 1.0, 64: 4.0}))


def test_the_law_is_the_line_through_the_logarithms():
    law = law_of(LINE)
    assert law == pytest.approx({"at_one": 1.0, "per_doubling": 0.5, "r2": 1.0})
    assert law_of(LINE[:2]) == {}


def test_a_step_on_several_devices_is_the_largest_part_and_what_it_lacks_and_a_message():
    def ms(width, devices, costs=STEEP):
        found = best_widths([width], costs, devices=[devices], message_ms=0.1)
        return [width["tokens"] / speedup for speedup in found.speedup]

    assert ms(WIDE, 1) == pytest.approx([4.0])
    assert ms(WIDE, 2) == pytest.approx([1.0 + 3.0 * 19 / 48 + 0.1])
    assert ms(NARROW, 2) == pytest.approx([1.1])
    drafting = {**NARROW, "draft_calls": 2.0, "draft_nodes": 1.0}
    assert ms(drafting, 1) == [], "these costs have no draft"
    with_draft = replace(STEEP, draft=Surface.constant(0.25), host_ms={"x": 0.5})
    assert ms(drafting, 1, with_draft) == pytest.approx([2.0])


def test_a_wider_tree_pays_where_one_device_is_steep():
    found = best_widths([NARROW, WIDE], STEEP, devices=[1, 2, 4], message_ms=0.05)
    assert list(found.nodes) == [16.0, 16.0, 64.0] and found.speedup[0] == pytest.approx(2.0)
    with_message, wide = 1 / 1.05, 3.0 / (1.0 + 3 * 3 / 48 + 0.05) / 2.0
    speed = list(found.speedup / found.speedup[0])
    assert speed == pytest.approx([1.0, with_message, wide])
    flat = Costs(Surface.flat({1: 1.0, 64: 1.0}))
    assert set(best_widths([NARROW, WIDE], flat, devices=[1, 4], message_ms=0).nodes) == {64.0}


def test_widths_beyond_the_costs_are_left_out():
    short = Costs(Surface.flat({1: 1.0, 16: 1.0}))
    found = best_widths([NARROW, WIDE], short, devices=[1], message_ms=0)
    assert list(found.nodes) == [16.0]
