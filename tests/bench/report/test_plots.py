"""Plots of one run and of several, from hand-made samples."""

from dataclasses import replace

import numpy as np
import pytest
from measured import FAST, GREEDY, THIRD, measured, sample, step

from ouroboros.bench.report import plots, style
from ouroboros.bench.report.plots import Setting
from ouroboros.bench.report.style import SOURCES, decoder_marks
from ouroboros.bench.report.summary import summarise


@pytest.fixture(scope="module")
def summary():
    return summarise(measured([*GREEDY, *FAST, *THIRD]))


def without_limits(summary):
    hidden = [name for name in summary.frame if name.endswith((".low", ".high"))]
    return replace(summary, frame=summary.frame.assign(**dict.fromkeys(hidden, np.nan)))


def test_bars_are_in_the_order_of_the_table_and_labelled(summary):
    (axes,) = plots.bars(summary, plots.SPEED).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["greedy", "fast"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([1.0, 2.5])
    assert axes.texts[1].get_text() == "2.50x · 1.2 tok/s"
    assert axes.get_xlim()[1] > 3.0 and not any(bar.get_hatch() for bar in axes.patches)


def test_a_bar_of_one_or_two_prompts_is_hatched_and_says_so():
    (axes,) = plots.bars(summarise(measured([*GREEDY, FAST[0], *THIRD[:1]])), plots.SPEED).axes
    assert [bar.get_hatch() for bar in axes.patches] == [None, "///"]
    assert ["(n = 1)" in text.get_text() for text in axes.texts] == [False, True]


def test_an_empty_run_has_no_plots():
    empty = summarise(measured([]))
    assert plots.bars(empty, plots.SPEED) is plots.bars(empty, plots.COST) is None
    assert plots.source_shares(empty) is plots.acceptance_by_position(empty) is None


def test_intervals_are_error_bars_only_where_they_are_known(summary):
    bare = without_limits(summary)
    assert "Error bars" in plots.note(summary) and "Error bars" not in plots.note(bare)
    assert plots.bars(bare, plots.SPEED).axes[0].get_xlim()[1] > 2.5


def test_acceptance_by_position(summary):
    assert plots.acceptance_by_position(summary) is None  # too few steps
    many = [sample("a", "fast", [step(2, 1)] * 12), sample("a", "greedy", [step(0, 0)] * 24)]
    many[0] = replace(many[0], steps=many[0].steps + (step(0, 0),) * 12)
    panels = plots.acceptance_by_position(summarise(measured(many))).axes
    assert [axes.lines[0].get_ydata().tolist() for axes in panels] == [[0.5, 0.0], [1.0, 0.0]]


def test_a_sweep_is_drawn_to_scale_or_in_order(summary):
    own = ["decoder.fast.gamma"]
    figure = plots.sweep_lines([Setting("gamma", [8, 2, 4], own)], [summary] * 3)
    (greedy, *_), (fast, *_) = figure.axes[0].lines, figure.axes[0].containers
    assert greedy.get_linestyle() == ":" and fast[0].get_linestyle() == "-"
    assert greedy.get_xdata() == [0, 1] and greedy.get_ydata() == [1, 1], "from edge to edge"
    assert fast[0].get_xdata().tolist() == [2, 4, 8]
    assert figure.axes[0].get_xticks().tolist() == [2, 4, 8] and len(figure.axes) == 2
    runs = [without_limits(summary)] * 3
    words = plots.sweep_lines([Setting("state", ["warm", None, "cold"], ["state"])], runs).axes[0]
    assert [tick.get_text() for tick in words.get_xticklabels()] == ["warm", "None", "cold"]
    assert plots.sweep_lines([Setting("gamma", [2, 2], own)], [summary] * 2) is None


def test_marks_do_not_depend_on_the_order_of_decoders():
    names = ["ouroboros", "greedy", "lookahead", "speculative", "hf_assisted", "llama_cpp"]
    names += ["ouroboros_cold"]
    marks = decoder_marks(names)
    assert marks == decoder_marks(names[:1] + names[:0:-1]) and list(marks) == names
    assert len({(mark.colour, mark.marker) for mark in marks.values()}) == len(names)
    assert len({(mark.colour, mark.line, mark.hatch) for mark, _ in SOURCES.values()}) > 10


@pytest.mark.slow
def test_a_figure_is_the_same_bytes_each_time(summary, tmp_path):
    one, two = (style.inline_svg(plots.bars(summary, plots.SPEED)) for _ in range(2))
    assert one == two and "var(--ink)" in one and "xmlns" not in one
    style.save(plots.bars(summary, plots.SPEED), tmp_path / "x.png", tmp_path / "x.svg")
    assert (tmp_path / "x.png").stat().st_size > 5000 and (tmp_path / "x.svg").exists()
