"""Decoder against decoder, costs per token and predictions, on samples made by hand."""

from dataclasses import replace

import pytest
from matplotlib.text import Text
from measured import RUN, sample, step, write_run

from ouroboros.bench.metrics import intervals, metrics
from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.report import compare
from ouroboros.bench.report.cells import as_text, within
from ouroboros.bench.report.folder_report import make_report, notes, to_markdown
from ouroboros.bench.report.leads import best_other, mean_lead, said
from ouroboros.bench.report.plots.speedups import calls_bars, comparison_dots, speedup_bars
from ouroboros.bench.report.summary import summarise
from ouroboros.bench.report.tables import count_frame, lead_frame, speed_frame, tables
from ouroboros.bench.report.title import pair_name
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.costs import CostModel, Costs, Surface

COSTS = Costs(Surface.flat({1: 10.0, 5: 14.0}), Surface.constant(2.0), {"": 1.0}, prefill_ms=30.0)
TOY = CostModel(COSTS, "the costs 'toy'")
NAMES = ["greedy", "other", "ouroboros", "hf_greedy"]


def chain(drafted, accepted):
    return step(drafted, accepted, draft_calls=drafted, times=(0, 0, 0))


def rows(timing=True):
    """Two prompts of six tokens: ouroboros takes 2 s and 4 s, another decoder 6 s and 6 s."""
    seconds = {"greedy": (12, 12), "other": (6, 6), "ouroboros": (2, 4), "hf_greedy": (12, 13)}
    steps = {
        "greedy": [chain(0, 0)] * 6,
        "other": [chain(2, 1)] * 3,
        "ouroboros": [chain(4, 2)] * 2,
        "hf_greedy": [step(0, 0, scored=0)] * 6,
    }
    return [
        replace(sample(name, decoder, steps[decoder], wall_s=wall, ttft_s=ttft), prompt_tokens=9)
        for decoder, walls in seconds.items()
        for name, wall, ttft in zip("ab", walls, (1.0, 1.0 + (decoder == "other")), strict=True)
    ]


def summary(priced=None, **facts):
    return summarise({**RUN, "decoders": NAMES, **facts}, rows(), {}, priced=priced)


def test_a_lead_is_paired_by_prompt_and_time_to_the_first_token_has_its_own():
    found = summary()["decoders"]["other"]
    assert found["latency_vs_ouroboros"]["value"] == pytest.approx(12 / 6)
    assert found["latency_vs_ouroboros"]["low"] == pytest.approx(6 / 4)
    assert found["ttft_vs_ouroboros"]["value"] == pytest.approx(3 / 2)
    assert found["decode_vs_ouroboros"]["value"] == pytest.approx((9 / 8) / (4 / 6))
    frame = lead_frame(summary()).set_index("ouroboros over")
    assert list(frame.index) == ["greedy", "other", "hf_greedy"]
    assert frame.loc["other", "tokens/s"] == "2.00x [1.50, 3.00]"
    assert frame.loc["other", "it is, by tokens/s"] == "ahead" and "predicted" not in frame


def test_a_word_is_said_only_where_the_whole_interval_says_so():
    known = [{"value": 1.1, "low": low, "high": high} for low, high in ((1.01, 2), (0.9, 2))]
    assert [said(one) for one in known] == ["ahead", "not told apart"]
    assert said({"value": 0.5, "low": 0.4, "high": 0.9}) == "behind"
    assert said({"value": 9.0, "low": None, "high": None}) == "not told apart"


def test_cost_per_token_is_in_target_calls_of_one_node():
    part = CostModel(COSTS).cost
    assert part(rows()[0]) == (pytest.approx(6.0), 6)
    ours = next(one for one in rows() if one.decoder == "ouroboros")
    assert part(ours) == (pytest.approx(2 * (14 + 8) / 10), 6)
    found = summary(TOY)["decoders"]
    assert found["ouroboros"]["cost_per_token"]["value"] == pytest.approx(4.4 / 6)
    assert found["other"]["cost_vs_ouroboros"]["value"] == pytest.approx(3 * (12 + 4) / 44)
    assert found["hf_greedy"]["cost_per_token"] is None
    assert "cost/token" in count_frame(summary(TOY)) and "cost/token" not in count_frame(summary())


def test_forwards_are_counted_where_they_are_known():
    ours = next(one for one in rows() if one.decoder == "ouroboros")
    first, later = ours.steps
    counted = replace(first, target_forwards=2, draft_forwards=5, draft_caught_up=200)
    sample = replace(ours, steps=(counted, replace(later, target_forwards=1, draft_forwards=4)))
    assert CostModel(COSTS).cost(sample)[0] == pytest.approx(4.4 + 1 + 0.2)
    assert metrics.calls_part(sample)[0] == pytest.approx(3 + 0.176 * 9)
    assert metrics.calls_part(ours)[0] == pytest.approx(2 + 0.176 * 8)
    assert metrics.forwards_per_token(sample.steps, "target") == pytest.approx(3 / 6)
    assert metrics.forwards_per_token(sample.steps, "draft") == pytest.approx(9 / 6)
    assert metrics.forwards_per_token(ours.steps, "target") is None


def test_what_a_draft_call_catches_up_is_fed_too():
    costs = replace(COSTS, draft=Surface.flat({1: 2.0, 11: 12.0}))
    ours = next(one for one in rows() if one.decoder == "ouroboros")
    first, later = ours.steps
    first = replace(first, draft_caught_up=999)  # the prompt, which is in the prefill
    behind = replace(later, draft_scored=4, draft_caught_up=8)
    before = CostModel(costs).cost(replace(ours, steps=(first, replace(later, draft_scored=4))))[0]
    assert CostModel(costs).cost(replace(ours, steps=(first, behind)))[0] == pytest.approx(
        before + 4 * (4 - 2) / 10
    )


def test_a_draft_that_is_first_asked_in_a_later_step_reads_the_prompt_there():
    costs = replace(COSTS, draft=Surface.flat({1: 2.0, 11: 12.0}))
    ours = next(one for one in rows() if one.decoder == "ouroboros")
    first, later = ours.steps
    alone = replace(first, draft_calls=0, draft_scored=0)
    asked = replace(later, draft_calls=first.draft_calls, draft_caught_up=999)
    found = CostModel(costs).predict(replace(ours, steps=(alone, asked)))
    assert found.steps[0].draft_s == 0 and found.steps[1].draft_s > 1e-3 * 6


def test_a_run_without_times_shows_predicted_speedups_and_says_so():
    found = summary(TOY, timing=False)
    assert found["title"].endswith("predicted by the costs 'toy'")
    assert any("predicted by the costs 'toy'" in note for note in notes(found))
    ours = found["decoders"]["ouroboros"]
    seconds = 2 * (14 + 8 + 1) + 30 + 6
    assert ours["predicted_speedup"]["value"] == pytest.approx((6 * 11 + 30) / seconds)
    assert ours["latency_speedup"] is None and ours["latency_vs_ouroboros"] is None
    columns = list(speed_frame(found))
    assert "predicted speedup" in columns and "latency speedup" not in columns
    assert "tokens/s" not in columns and "ouroboros over it, predicted" in columns
    for picture in (speedup_bars, calls_bars):
        assert "the costs 'toy'" in picture(found).axes[0].get_xlabel()
    measured = summary(TOY)
    assert "predicted" not in measured["title"] and "latency speedup" in speed_frame(measured)
    assert summary(timing=False)["decoders"]["ouroboros"]["predicted_speedup"] is None


def test_costs_that_do_not_reach_far_enough_predict_nothing():
    small = CostModel(Costs(Surface.flat({1: 10.0, 3: 12.0}), Surface.constant(2.0)), "x")
    whole = summary(small)
    found = whole["decoders"]
    assert found["ouroboros"]["cost_per_token"] is None and found["other"]["cost_per_token"]
    (line,) = [note for note in notes(whole) if "no prediction" in note]
    assert line.startswith("ouroboros has no cost/token and no prediction: a call scores 5 nodes")
    assert found["hf_greedy"]["unpriced"] is found["other"]["unpriced"] is None


def test_a_folder_s_own_costs_are_used(tmp_path):
    run = {**RUN, "decoders": NAMES, "timing": False, "samples_wanted": 8}
    folder = write_run(tmp_path, run, rows())
    assert make_report(folder)["costs"] is None and not (tmp_path / "speedup.png").exists()
    replace(COSTS, about={"name": "toy"}).save(tmp_path / "costs.json")
    assert make_report(ResultsFolder(tmp_path))["costs"] == "the costs 'toy'"
    assert (tmp_path / "speedup.png").exists()
    folder.save_costs(Costs.load("flat"))
    assert make_report(folder)["costs"] == "the costs 'flat'"


def test_the_best_other_decoder_of_each_run_and_their_mean():
    one = summary()
    assert best_other(one, "latency") == ("other", one["decoders"]["other"]["latency_vs_ouroboros"])
    frame = compare.best_other_frame({"run": ["x", "y"]}, [one, summary(timing=False)])
    assert "ouroboros over it, by calls/token at 0.176" in frame
    frame = compare.best_other_frame({"run": ["x", "y"]}, [one, one])
    assert list(frame["run"]) == ["x", "y", "geometric mean"]
    assert list(frame["best other"]) == ["other", "other", ""]
    assert compare.best_other_frame({"run": ["x"]}, [{**one, "decoders": {}}]).empty
    bare = {**one, "decoders": {}}
    frame = compare.best_other_frame({"run": ["x", "y"]}, [one, bare])
    assert len(frame) == 1 and frame.columns[2].endswith("by tokens/s"), "it leads nothing there"


def test_a_mean_over_runs_is_surer_than_one_run():
    wide = {"value": 2.0, "low": 1.0, "high": 4.0}
    alone, both = (
        mean_lead([wide]),
        mean_lead([wide, {**wide, "value": 8.0, "low": 4.0, "high": 16}]),
    )
    assert alone == pytest.approx(wide)
    assert both["value"] == pytest.approx(4.0)
    assert both["high"] == pytest.approx(4.0 * 2 ** (1 / 2**0.5))
    assert intervals.over_runs([Interval(2.0), Interval(8.0, 7.0, 9.0)]) == Interval(4.0)


def test_tables_of_a_terminal_are_no_wider_than_asked():
    frame = speed_frame(summary())
    assert max(map(len, as_text(frame, "simple").splitlines())) > 100
    shown = within(frame, 80)
    assert max(map(len, as_text(shown, "simple").splitlines())) <= 80
    assert "decoder" in shown and "decode speedup" not in shown


def test_what_a_terminal_leaves_out_is_in_the_summary():
    found = summary(TOY)
    shown, whole = tables(found, "simple", width=120), to_markdown(found)
    assert max(map(len, "\n".join(tables(found, "simple")).splitlines())) > 120
    assert max(map(len, "\n".join(shown).splitlines())) <= 120
    left_out = [name for name in count_frame(found) if name not in "\n".join(shown)]
    assert left_out and all(name in whole for name in left_out)


def test_two_pairs_have_two_names():
    one, two = (
        summary(model={**RUN["model"], "name": "hf", "target": target, "draft": "c/d"})["title"]
        for target in ("a/b", "a/e")
    )
    assert "b + d pair" in one and "e + d pair" in two
    assert pair_name({"name": "reference", "target": "reference/target"}) == "reference"


def test_a_run_without_greedy_says_what_is_lost():
    said_so = notes(summarise({**RUN, "decoders": ["ouroboros"]}, rows()[4:6], {}))
    assert any("No greedy here: no speedup" in note for note in said_so)
    assert not any("No greedy" in note for note in notes(summary()))


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["the costs measured with the run"] * 2, "greedy, a fit by"),
        (["the costs 'flat'"] * 2, "greedy, predicted by"),
        (["the costs measured with the run", "the costs 'flat'"], "of timed runs a fit by"),
    ],
)
def test_what_a_runs_own_costs_give_is_called_a_fit(names, word):
    found = [{**summary(), "costs": name} for name in names]
    assert word in compare.comparisons({"run": ["x", "y"]}, found)["predicted"][0]


def test_a_comparison_names_the_machines_of_what_it_shows():
    plain = {**summary(timing=False), "device": "another"}
    figure = comparison_dots({"a": summary(), "b": summary(), "c": plain})
    words = [text.get_text() for text in figure.findobj(Text)]
    assert any("Measured on" in one for one in words)
    assert not any("another" in one for one in words)
