"""A run as a summary, as tables, and as its folder's own report."""

import json
import math
from dataclasses import replace

import pytest
from measured import RUN, greedy_and_fast, sample, step, write_run

from ouroboros.bench.report.folder_report import (
    headline,
    make_report,
    summarise,
    tables,
    to_markdown,
)
from ouroboros.bench.report.published import published_frame
from ouroboros.bench.report.tables import group_frame, speed_frame
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import git_state, identity, provenance, without_paths
from ouroboros.bench.run.pair import fast_dtype


def test_groups_have_their_own_speedups():
    greedy, fast = greedy_and_fast()
    rows = [
        replace(one, group=group)
        for pair in (greedy, fast)
        for one, group in zip(pair, ("math", "code"), strict=True)
    ]
    frame = group_frame(summarise(RUN, rows, {}))
    assert frame.set_index("group")["fast"].to_dict() == {"math": "2.00x", "code": "3.00x"}
    assert group_frame(summarise(RUN, [*greedy, *fast], {})).empty


def test_a_whole_report(tmp_path):
    greedy, fast = greedy_and_fast()
    failed = sample("b", "hf_greedy", [], error="ValueError: too long", wall_s=0.0, ttft_s=None)
    scores = {row.key: {"passed": 1.0} for row in fast}
    folder = write_run(tmp_path, RUN, [*greedy, *fast, failed], scores)
    summary = make_report(folder)
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert (tmp_path / "speedup.png").stat().st_size > 5000
    row = summary["decoders"]["fast"]
    assert row["latency_speedup"]["value"] == pytest.approx(2.5)
    assert row["tokens_per_target_call"] == pytest.approx(2.5)
    assert row["scores"] == {"pass@1": 1.0}
    assert row["latency_speedup_vs_hf"] is None
    assert summary["decoders"]["hf_greedy"]["failed"] == 1
    text = (tmp_path / "summary.md").read_text()
    assert "stand-in" in text.splitlines()[0] and "batch size 1" in text.splitlines()[0]
    assert "Toy CPU" in text.splitlines()[0]
    assert "**Incomplete**: 5 of 6 samples." in text
    assert "hf_greedy: 1 failed: ValueError: too long" in text
    assert row["score_intervals"]["pass@1"]["low"] > 0.3
    assert headline(summary)["fast"]["latency_speedup"] == 2.5


def test_repetition_and_inequality_are_marked():
    rows = [
        sample("a", "greedy", [step(0, 0)] * 9, tokens=(7,) * 9),
        sample("a", "fast", [step(0, 0)] * 9, tokens=(7,) * 8 + (6,)),
    ]
    speed, *_ = tables(summarise({**RUN, "decoders": ["greedy", "fast"]}, rows, {}))
    assert "83 %, above" in speed and "1 of 1" in speed


def test_an_empty_run_still_reports():
    summary = summarise(RUN, [], {})
    assert "greedy" in to_markdown(summary)
    assert not any(isinstance(v, float) and math.isnan(v) for v in summary["decoders"].values())


def test_the_title_counts_what_was_measured():
    greedy, fast = greedy_and_fast()
    bad = sample("b", "fast", [], error="RuntimeError: x", wall_s=0.0, ttft_s=None)
    short = summarise(RUN, [greedy[0], fast[0], bad], {})
    assert "toy, 1 of 2 prompts" in short["title"] and short["incomplete"]
    speed = speed_frame(short).set_index("decoder")
    assert speed.loc["fast", "samples"] == "1 (1 failed)"
    assert speed.loc["fast", "latency speedup"] == "2.00x"
    whole = summarise({**RUN, "samples_wanted": 4}, [*greedy, *fast], {})
    assert "toy, 2 prompts" in whole["title"] and not whole["incomplete"]
    stopped = {**RUN, "samples_wanted": 4, "status": "interrupted"}
    assert "'interrupted'" in to_markdown(summarise(stopped, [*greedy, *fast], {}))


def test_published_numbers_stand_beside_the_measured_ones():
    published = {
        "source": "arXiv 2402.13720",
        "hardware": "A100",
        "tokens_per_s": {"greedy": 15.6, "fast": 62.4, "absent": 31.2},
    }
    greedy, fast = greedy_and_fast()
    summary = summarise({**RUN, "published": published}, [*greedy, *fast], {})
    rows = published_frame(summary).set_index("decoder")
    assert rows.loc["fast", "published speedup"] == "4.00x"
    assert rows.loc["fast", "measured speedup"].startswith("2.50x")
    assert rows.loc["fast", "measured / published"] == "0.62"
    assert rows.loc["absent", "measured speedup"] == rows.loc["hf_greedy", "published speedup"]
    text = to_markdown(summary)
    assert "on A100. Measured (a stand-in): on Toy CPU" in text
    own = {**RUN["model"], "standin": None, "target": "reference/target"}
    rehearsal = summarise({**RUN, "model": own, "published": published}, fast, {})
    assert "(a rehearsal)" in rehearsal["title"]
    assert "rehearsal" not in summarise({**RUN, "model": own}, fast, {})["title"]


def test_scores_of_all_completions_together_stand_with_the_others():
    greedy, fast = greedy_and_fast()
    run = {**RUN, "corpus_scores": {"fast": {"bleu": 23.5}}}
    summary = summarise(run, [*greedy, *fast], {})
    assert list(speed_frame(summary)["bleu"]) == ["-", "23.500", "-"]
    assert "bleu" not in speed_frame(summarise({**run, "parts": 2}, [*greedy, *fast], {}))


def test_a_verdict_gets_a_column():
    greedy, fast = greedy_and_fast()
    summary = summarise(RUN, [*greedy, *fast], {})
    assert "lossless" not in speed_frame(summary)
    summary["decoders"]["fast"]["verdict"] = "1 tie of 2"
    assert list(speed_frame(summary)["lossless"]) == ["-", "1 tie of 2", "-"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a results folder"):
        make_report(ResultsFolder(tmp_path))


def test_provenance_names_versions_and_machine_but_no_host():
    import platform

    found = provenance()
    assert found["versions"]["torch"] and found["machine"]["cores"] >= 1
    assert json.loads(json.dumps(found)) == found
    assert platform.node() not in json.dumps(found)
    assert git_state(ResultsFolder("/").path) is None
    assert str(fast_dtype("cpu")) in ("torch.bfloat16", "torch.float32")


def test_identity_and_paths(tmp_path):
    assert identity({"a": 1, "b": 2}, "x") == identity({"b": 2, "a": 1}, "x")
    assert identity({"a": 1}) != identity({"a": 2})
    (tmp_path / "pair").mkdir()
    assert without_paths({"m": [str(tmp_path / "pair"), "01-ai/Yi-34B"]}) == {
        "m": ["pair", "01-ai/Yi-34B"]
    }
    assert without_paths("cannot read /etc/x/y: denied, see https://a.b/c/d") == (
        "cannot read y: denied, see https://a.b/c/d"
    )
