"""A run's summary: facts, the table of metrics, files and notes."""

import json
from dataclasses import replace

import numpy as np
import pytest
from measured import COSTS, FAST, GREEDY, RUN, TOY, measured, sample, three_decoders, write_run

from ouroboros.audit.report import Row
from ouroboros.bench.metrics import METRICS
from ouroboros.bench.report import plots
from ouroboros.bench.report.gather import load
from ouroboros.bench.report.report import make_report, render, run_section
from ouroboros.bench.report.summary import audit_cell, interval_of, summarise
from ouroboros.bench.report.tables import run_tables, terminal_tables
from ouroboros.costs import CostModel, Costs, Surface


def test_a_row_per_decoder_and_a_column_per_metric():
    frame = summarise(measured()).frame
    assert list(frame.index) == ["greedy", "fast", "hf_greedy"]
    assert {column.partition(".")[0] for column in frame.columns} == set(METRICS)
    row = frame.loc["fast"]
    found = interval_of(row, "latency_speedup")
    assert found.value == pytest.approx(2.5) and found.few and found.low is found.high is None
    assert interval_of(row, "cost_per_token") is None and np.isnan(row["cost_per_token"])


def test_a_folders_own_report(tmp_path):
    failed = sample("b", "hf_greedy", [], error="ValueError: too long", wall_s=0.0, ttft_s=None)
    scores = {row.key: {"passed": 1.0} for row in FAST}
    folder = write_run(tmp_path, RUN, [*GREEDY, *FAST, failed], scores)
    summary = make_report(folder)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == json.loads(json.dumps(summary.to_dict()))
    assert (tmp_path / "speedup.svg").stat().st_size > 5000
    row = written["decoders"]["fast"]
    two = {"value": pytest.approx(2.5), "low": None, "high": None, "prompts": 2}
    assert row["latency_speedup"] == row["equal_speedup"] == two
    assert row["tokens_per_target_call"] == pytest.approx(2.5)
    assert row["score.pass@1"]["value"] == 1.0 and row["score.pass@1"]["low"] > 0.3
    assert row["groups"] == {}
    assert written["decoders"]["hf_greedy"]["failed"] == 1
    text = (tmp_path / "summary.md").read_text()
    assert all(word in text.splitlines()[0] for word in ("stand-in", "batch size 1", "Toy CPU"))
    assert "**Incomplete**: 5 of 6 samples." in text
    assert "hf_greedy: 1 failed: ValueError: too long" in text
    assert "- speedup: Greedy's seconds per token / the decoder's" in text
    assert "decoders alternate by prompt or batch" in text
    assert summary.headline()["fast"]["latency_speedup"] == 2.5


def test_scores_that_are_missing_cut_off_or_timed_out_are_counted():
    cut = [replace(GREEDY[0], finish="length"), replace(GREEDY[1], finish="context")]
    rows = [*cut, *(replace(row, finish="eos") for row in FAST)]
    scores = {row.key: {"passed": 0.0, "timed_out": 0.0} for row in rows[:3]}
    scores[FAST[0].key] = {"passed": 0.0, "timed_out": 1.0}
    notes = summarise(measured(rows, scores=scores)).notes
    assert "greedy: 2 of 2 scored completions were cut off at the length limit (max_new=6)" in notes
    assert "fast: 1 of 2 programs timed out, so they did not pass" in notes
    assert "fast: only 1 of 2 completions have a score" in notes
    bare = summarise(measured(rows)).notes
    assert not any("cut off" in note or "a score" in note for note in bare)


def test_the_title_counts_what_was_measured():
    bad = sample("b", "fast", [], error="ValueError: x", wall_s=0.0, ttft_s=None)
    short = summarise(measured([GREEDY[0], FAST[0], bad]))
    assert "toy, 1 of 2 prompts" in short.facts.title and short.facts.incomplete
    assert short.frame.loc["fast", "samples"] == short.frame.loc["fast", "failed"] == 1
    assert interval_of(short.frame.loc["fast"], "latency_speedup").text() == "2.00 (n = 1)"
    worse = replace(bad, example="a", error="OSError: y")
    notes = summarise(measured([*GREEDY, worse, bad])).notes
    assert {"fast: 1 failed: OSError: y", "fast: 1 failed: ValueError: x"} <= set(notes)
    whole = summarise(measured(samples_wanted=4)).facts
    assert "toy, 2 prompts x up to 6 tokens" in whole.title and not whole.incomplete
    stopped = summarise(measured(samples_wanted=4, status="interrupted"))
    assert "'interrupted'" in render("report.md", [run_section(stopped)], [stopped])


def model(**changes):
    return {"model": {**RUN["model"], "standin": None, "target": "a/big", **changes}}


def task(**changes):
    return {"task": {**RUN["task"], **changes}}


def gpus(device):
    machine = {**RUN["provenance"]["machine"], "gpus": ["A", "B"]}
    return {**model(device=device), "provenance": {**RUN["provenance"], "machine": machine}}


SAMPLING = {"temperature": 0.8, "top_k": 0, "top_p": 0.9, "repetition_penalty": 1.1}
PUBLISHED = {"tokens_per_s": {"greedy": 15.6}}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"sampling": SAMPLING}, "T=0.8, top_p=0.9, repetition penalty=1.1"),
        (
            task(template="chat", template_args={"enable_thinking": False}),
            "toy, 2 prompts x up to 6 tokens, chat template, enable_thinking=false",
        ),
        (task(template="paper-yi"), "toy, 2 prompts x up to 6 tokens, template paper-yi"),
        ({"config": {"parallel": "tree"}}, "batch size 1, parallel=tree"),
        ({"parallel": {"ranks": 2}}, "Toy CPU, 2 cores, 2 processes"),
        (model(draft="c/d"), "big + d"),
        (model(name="SmolLM2", target="reference/target"), "SmolLM2"),
        (model(quantised={"draft": "quanto int8"}), "float32, draft quanto int8"),
        (
            model(engines={"target": {"engine": "fused", "exact": True}}),
            "float32, fused engine (exact calls)",
        ),
        (model(standin={"target": "x", "draft": "y"}), "big as a stand-in, shapes x / y"),
        (
            model(name="SmolLM2", target="reference/target") | {"published": PUBLISHED},
            "SmolLM2 (a rehearsal)",
        ),
        (gpus("cuda:1"), "B"),
        (gpus("cpu"), "Toy CPU, 2 cores"),
    ],
)
def test_a_title_names_the_conditions(facts, words):
    assert words in measured(**facts).facts.title.split(" · ")


def test_the_json_document_is_short():
    found = summarise(three_decoders(TOY)).headline()
    assert found["other"]["latency_speedup"] == 2 and "acceptance_length" not in found["greedy"]
    assert all(len(json.dumps(row)) < 200 for row in found.values()), "2 KB hold ten decoders"


def test_costs_give_cost_per_token_and_predicted_speedups():
    frame = summarise(three_decoders(TOY)).frame
    assert frame.loc["ouroboros", "cost_per_token"] == pytest.approx(4.4 / 6)
    assert np.isnan(frame.loc["hf_greedy", "cost_per_token"])
    seconds = 2 * (14 + 8 + 1) + 30 + 6
    predicted = frame.loc["ouroboros", "predicted_speedup"]
    assert predicted == pytest.approx((6 * 11 + 30) / seconds)
    share = frame.loc["ouroboros", "predicted_share"]
    later = 3 * 1e-3 * (14 + 8 + 1)  # without the first steps, which took a second each
    assert share == pytest.approx(later / (2 + 4 + 3 - 3))


def test_a_run_without_times_shows_predictions_and_says_so():
    summary = summarise(three_decoders(TOY, timing=False))
    assert summary.facts.title.endswith("predicted with the costs 'toy'")
    assert any("speedups are predicted with the costs 'toy'" in note for note in summary.notes)
    ours = summary.frame.loc["ouroboros"]
    assert np.isnan(ours["latency_speedup"]) and np.isnan(ours["latency_vs_ouroboros"])
    assert ours["predicted_speedup"] > 1
    without = summarise(three_decoders(timing=False)).frame
    assert without["predicted_speedup"].isna().all()
    assert "predicted" not in summarise(three_decoders(TOY)).facts.title
    bare = CostModel(replace(COSTS, prefill_ms=0.0), "toy")
    title = summarise(three_decoders(bare, timing=False)).facts.title
    assert title.endswith("predicted with toy, without prefill")
    split = three_decoders(bare, timing=False, parallel={"ranks": 2})
    assert summarise(split).facts.title.endswith("without prefill, for one process")
    batched = summarise(three_decoders(TOY, timing=False, config={"batch_size": 2}))
    assert "predicted" not in " ".join([batched.facts.title, *batched.notes[:1]])


def test_costs_that_do_not_reach_far_enough_predict_nothing_and_say_why():
    small = CostModel(Costs(Surface.flat({1: 10.0}), Surface.constant(2.0)), "x")
    summary = summarise(three_decoders(small))
    assert np.isnan(summary.frame.loc["ouroboros", "cost_per_token"])
    (line,) = [note for note in summary.notes if note.startswith("ouroboros: no cost")]
    assert line.startswith("ouroboros: no cost/token and no prediction: a call scores 5 nodes")


def test_a_folders_own_costs_are_used(tmp_path):
    one = three_decoders(timing=False, samples_wanted=12)
    folder = write_run(tmp_path, one.run, one.samples)
    assert make_report(folder).facts.costs is None and not (tmp_path / "speedup.svg").exists()
    assert (tmp_path / "calls.svg").exists()
    for about, words in (
        ({}, "the given costs"),
        ({"measured": "at load"}, "the costs measured with the run"),
        ({"name": "toy"}, "the costs 'toy'"),
    ):
        replace(COSTS, about=about).save(tmp_path / "costs.json")
        assert load(tmp_path).facts.costs == words
    make_report(folder)
    assert (tmp_path / "speedup.svg").exists()


def test_order_and_notes_follow_from_the_decoders():
    order = ["hf_greedy", "other", "ouroboros", "greedy"]
    fastest_first = ["greedy", "ouroboros", "other", "hf_greedy"]
    for timing in (True, False):
        one = summarise(three_decoders(decoders=order, timing=timing))
        assert list(one.frame.index) == fastest_first
    assert not any("no greedy" in note for note in one.notes)
    alone = summarise(three_decoders(decoders=["ouroboros"]))
    assert any(note.startswith("The run has no greedy decoder") for note in alone.notes)
    assert "NaN" not in json.dumps(summarise(measured([])).to_dict())


def test_corpus_scores_stand_with_the_others():
    run = {"corpus_scores": {"fast": {"bleu": 23.5}}}
    frame = summarise(measured(**run)).frame
    assert frame.loc["fast", "score.bleu"] == 23.5 and np.isnan(frame.loc["greedy", "score.bleu"])


def test_completions_that_differ_are_compared_and_named():
    other = [replace(FAST[0], new_tokens=(9, 9, 9, 9)), FAST[1]]
    one = measured([*GREEDY, *other])
    (note,) = [note for note in summarise(one).notes if "all completions" in note]
    assert note.endswith("the equal ones alone: fast 1 of 2, 3.00x (n = 1).")
    assert summarise(one).frame.loc["fast", "latency_speedup"] == pytest.approx(2.5)
    assert not any("all completions" in note for note in summarise(measured()).notes)
    findings = {"greedy": {"verdict": "reference"}, "fast": {"verdict": "in law"}}
    law = replace(one, audit=[Row(prompt, 0, findings) for prompt in "ab"])
    assert not any("all completions" in note for note in summarise(law).notes)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"other_percent": 45.4}, "machine was busy (45 % by other programs)"),
        ({"other_percent": 20.0}, ""),
        ({}, ""),
    ],
)
def test_a_busy_machine_is_told_wherever_its_times_are(load, words):
    summary = summarise(measured(load=load))
    assert summary.facts.busy == words and words in summary.facts.title
    assert words in plots.conditions([summary])
    assert not measured(load=load, timing=False).facts.busy


def test_a_slower_engine_is_named_with_its_reason():
    engines = {"target": {"engine": "eager", "fallback": "why"}, "draft": {"engine": "fused"}}
    notes = summarise(measured(model={**RUN["model"], "engines": engines})).notes
    assert "The target's engine is eager: why." in notes and not any("draft's" in n for n in notes)


def test_captions_name_models_and_prompts():
    summary = summarise(measured(**model()))
    assert plots.conditions([summary]) == " Models: big; 2 prompts."
    other = replace(summary, measured=measured(FAST[:1], **model(target="a/small")))
    assert plots.conditions([summary, other]) == " Models: big or small; 1 or 2 prompts."


def test_groups_have_their_own_speedups():
    groups = ("math", "code")
    by_prompt = dict(zip("ab", groups, strict=True))
    rows = [replace(one, group=by_prompt[one.example]) for one in (*GREEDY, *FAST)]
    summary = summarise(measured(rows))
    found = summary.groups["latency_speedup"]
    assert list(dict.fromkeys(found.index.get_level_values(0))) == list(groups)
    assert found["math", "fast"] == pytest.approx(2) and found["code", "fast"] == pytest.approx(3)
    assert set(summary.to_dict()["decoders"]["fast"]["groups"]) == set(groups)
    assert summarise(measured()).groups.empty
    table = {table.name: table.frame for table in run_tables(summary)}["groups"]
    ratios = {"math": "2.00x (n = 1)", "code": "3.00x (n = 1)"}
    assert table.set_index("group")["fast"].to_dict() == ratios
    assert list(table["prompts"]) == ["1", "1"]
    _, shown = terminal_tables(summary)
    assert [column.header for column in shown.columns] == ["group", "prompts", "greedy", "fast"]
    assert list(shown.columns[-1].cells) == ["2.00x", "3.00x"]


def test_a_verdict_on_greedy_names_float64():
    counts = {"identical": 1, "numeric tie": 2}
    assert audit_cell("greedy", counts) == "2 ties of 3 (float64)"
    assert audit_cell("racer", counts) == "2 ties of 3"
    assert audit_cell("greedy", {"reference": 3}) == "reference"
    assert audit_cell("greedy", {"reference": 2, "not measured": 1}) == "1 of 3 not measured (!)"
    assert audit_cell("greedy", {}) is None
