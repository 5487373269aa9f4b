"""Plots of one run and of several, from hand-made samples."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from measured import RUN, greedy_and_fast, measured_trees, sample, step, write_run

from ouroboros.bench.report import plots, style
from ouroboros.bench.report.gather import load
from ouroboros.bench.report.style import SOURCES, decoder_marks
from ouroboros.bench.report.summary import summarise

ROWS = [row for pair in greedy_and_fast() for row in pair]
PLOTS = [
    *(partial(plots.bars, metrics=plots.SPEED), partial(plots.bars, metrics=plots.COST)),
    plots.time_shares,
    *(plots.acceptance_histograms, plots.source_shares),
]


@pytest.fixture
def summary_of(tmp_path):
    """Return the summary of a run of these samples."""

    def made(rows=ROWS, **facts):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        write_run(path, {**RUN, **facts}, rows)
        (path / "samples.jsonl").touch()
        return summarise(load(path))

    return made


def without_limits(summary):
    hidden = [name for name in summary.frame if name.endswith((".low", ".high"))]
    return replace(summary, frame=summary.frame.assign(**dict.fromkeys(hidden, np.nan)))


def test_bars_are_in_the_order_of_the_table_and_labelled(summary_of):
    (axes,) = plots.bars(summary_of(), plots.SPEED).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["greedy", "fast"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([1.0, 2.5])
    assert axes.texts[1].get_text() == "2.50x · 1.2 tok/s"
    assert axes.get_xlim()[1] > 3.0


@pytest.mark.parametrize("plot", PLOTS)
def test_an_empty_run_has_no_plots(summary_of, plot):
    assert plot(summary_of([])) is None


def test_intervals_are_error_bars_only_where_they_are_known(summary_of):
    summary = summary_of()
    reach = style.reach(summary.frame.loc[["fast"]], "latency_speedup")
    assert reach.ravel().tolist() == pytest.approx([0.5, 0.5])
    bare = without_limits(summary)
    assert "Error bars" in plots.note(summary) and "Error bars" not in plots.note(bare)
    assert np.isnan(style.reach(bare.frame, "latency_speedup")).all()
    assert plots.bars(bare, plots.SPEED).axes[0].get_xlim()[1] > 2.5


def test_histograms_and_positions(summary_of):
    figure = plots.acceptance_histograms(summary_of())
    assert figure.axes[0].get_title(loc="left") == "fast: 2.50 tokens per step"
    assert plots.acceptance_by_position(summary_of()) is None  # too few steps
    many = [sample("a", "fast", [step(2, 1)] * 12), sample("a", "greedy", [step(0, 0)] * 24)]
    (axes,) = plots.acceptance_by_position(summary_of(many)).axes
    assert axes.lines[0].get_ydata().tolist() == [1.0, 0.0]


def test_a_sweep_is_drawn_to_scale_or_in_order(summary_of):
    one = summary_of()
    figure = plots.sweep_lines("gamma", [8, 2, 4], [one] * 3)
    assert figure.axes[0].get_xticks().tolist() == [2, 4, 8] and len(figure.axes) == 2
    words = plots.sweep_lines("state", ["warm", None, "cold"], [without_limits(one)] * 3).axes[0]
    assert [tick.get_text() for tick in words.get_xticklabels()] == ["warm", "None", "cold"]
    assert plots.sweep_lines("gamma", [2, 2], [one] * 2) is None


def test_two_settings_make_a_map_with_the_best_cell_framed(summary_of):
    values = [(2, 1), (2, 3), (4, 1), (4, 3)]
    figure = plots.sweep_map(("gamma", "topk"), values, [summary_of()] * 4, "fast")
    speedup, calls = figure.axes
    assert speedup.get_title(loc="left").endswith("best: 2.50x [2.00, 3.00]")
    assert speedup.images[0].get_clim() == pytest.approx((2.0, 3.0))
    first, *rest = [(patch.get_xy(), patch.get_linestyle()) for patch in speedup.patches]
    assert first == ((-0.46, -0.46), "-") and [look for _, look in rest] == ["--"] * 3
    assert plots.sweep_map(("a", "b"), values, [summary_of()] * 4, "hf_greedy") is None
    assert "calls/token (lower is better)" in calls.get_title(loc="left")


def test_trees_and_their_calibration(tmp_path):
    run = measured_trees(tmp_path, {**RUN["model"], "target": "reference/target"})
    summary = summarise(run)
    upper, lower = plots.reliability(summary).axes
    assert upper.get_title(loc="left").startswith("fast: log loss")
    assert sum(bar.get_height() for bar in lower.patches) == 4  # nodes whose parent was accepted
    silent = {
        key: [one._replace(tree=replace(one.tree, probability=())) for one in steps]
        for key, steps in run.trees.items()
    }
    summary = summarise(replace(run, trees=silent))
    assert plots.reliability(summary) is None
    assert plots.reliability(summarise(replace(run, trees={}))) is None


def test_a_fit_has_a_panel_for_each_view():
    bins = [{"from": 0.5, "thought": 0.55, "came": 0.5, "observations": 10}]
    view = {"reliability": bins, "log_loss": 0.5, "log_loss_of_the_mean": 0.7}
    assert len(plots.fitted_weights({"index": view, "draft": view}).axes) == 4


def test_marks_do_not_depend_on_the_order_of_decoders():
    names = ["ouroboros", "greedy", "lookahead", "speculative", "hf_assisted", "ouroboros_cold"]
    marks = decoder_marks(names)
    assert marks == decoder_marks(names[:1] + names[:0:-1]) and list(marks) == names
    looks = {(mark.colour, mark.marker) for mark in marks.values()}
    assert len(looks) == len(names) and len({mark.colour for mark, _ in SOURCES.values()}) > 8


def test_a_figure_is_the_same_bytes_each_time(summary_of, tmp_path):
    summary = summary_of()
    one, two = (style.inline_svg(plots.bars(summary, plots.SPEED)) for _ in range(2))
    assert one == two and "var(--ink)" in one and "xmlns" not in one
    style.save(plots.bars(summary, plots.SPEED), tmp_path / "x.png", tmp_path / "x.svg")
    assert (tmp_path / "x.png").stat().st_size > 5000 and (tmp_path / "x.svg").exists()


def test_a_title_breaks_between_its_parts_or_inside_a_part_that_is_too_long():
    title = f"{'one ' * 14}· {'two, ' * 14}· {'three, ' * 20}end"
    figure = style.with_title(style.new_figure(2), title, "note")
    first, second, *rest = figure.get_suptitle().replace("\xa0", " ").split("\n")
    assert first.rstrip(" ·") == ("one " * 14).strip() and second.startswith("two, ")
    assert all(len(line) <= style.TITLE_WIDTH for line in (first, second, *rest))
    assert figure.get_figheight() > 2 and figure.get_supxlabel() == "note"
