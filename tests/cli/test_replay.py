"""`ouroboros replay` end to end on a tiny pair: folders, texts, costs, errors."""

import json
import re
import shutil

import pytest
from bench_models import byte_tokenizer

from ouroboros.bench.replay.recording import read_recording

TINY = ["task.limit=2", "max_new=8", "threads=1", "model.dtype=float32", "timing=false"]


@pytest.fixture
def run_replay(call):
    """Return exit code, its document and stderr."""

    def run(*overrides: str) -> tuple[int, dict, str]:
        code, out, err = call("replay", "model.dtype=float32", "threads=1", *overrides)
        lines = out.splitlines()
        return code, json.loads(lines[-1]) if lines else {}, err

    return run


def test_a_results_folder_is_replayed_and_its_time_predicted(run_bench, run_replay, saved_pair):
    names = "decoder=[greedy,speculative,prompt_lookup,lookahead]"
    options = (*TINY, "model.engine=eager", "record_predictions=true")  # replays count its passes
    assert run_bench(names, *options, "results_dir=live")[0] == 0
    live = json.loads((saved_pair / "live" / "summary.json").read_text())["decoders"]
    (saved_pair / "costs.yaml").write_text("verify_ms: {1: 10, 99: 20}\ndraft_ms: 1\n")
    code, document, err = run_replay(names, "recording=live", "costs=costs.yaml")
    assert code == 0 and document["costs"] == "costs", err
    assert document["title"] == "replay of live, predicted with costs, without prefill"
    for name, row in document["decoders"].items():
        for metric in ("tokens_per_target_call", "draft_calls_per_token"):
            assert row[metric] == live[name][metric]
        assert row["calls_per_token"] == live[name]["calls_per_token"]["value"]
    assert document["decoders"]["greedy"]["predicted_ms_per_token"] == pytest.approx(10)
    table = "costs={verify_ms: {1: 7, 99: 20}, draft_ms: 1}"
    again = run_replay("decoder=greedy", "recording=live", table)[1]["decoders"]["greedy"]
    assert again["predicted_ms_per_token"] == pytest.approx(7)
    code, document, err = run_replay(names, "recording=live", "costs={verify_ms: {1: 7}}")
    assert code == 2 and "error: lookahead is not predicted: a call scores" in err
    assert "speculative is not predicted: " in err and "greedy is not" not in err
    assert document["decoders"]["greedy"]["predicted_ms_per_token"] == pytest.approx(7)
    row = document["decoders"]["lookahead"]
    assert row["target_calls"] and row["predicted_speedup"] is None and row["failed"]
    code, _, err = run_replay("recording=live", "costs=live")
    assert code == 2 and "timing=false" in err


def test_a_limit_takes_the_first_prompts_of_a_batch(run_bench, saved_pair):
    options = (*TINY, "decoder=[greedy]", "batch_size=2", "results_dir=together")
    assert run_bench(*options)[0] == 0
    path = saved_pair / "together" / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    first = json.loads(lines[0])["example"]
    path.write_text("".join(reversed(lines)))  # as if the second had ended first
    (run,) = read_recording(path.parent, byte_tokenizer(), limit=1)["greedy"].runs
    assert run.example == first


def test_another_engines_text_is_replayed(run_replay, saved_pair):
    row = {"prompt": "abc\u2028abc", "completion": "abcabcabc"}
    (saved_pair / "text.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n")
    code, document, err = run_replay("recording=text.jsonl", "decoder=[greedy,prompt_lookup]")
    assert code == 0, err
    greedy, lookup = document["decoders"].values()
    assert greedy["target_calls"] == greedy["new_tokens"] == lookup["new_tokens"]
    assert lookup["target_calls"] < greedy["target_calls"]


def test_another_draft_than_the_recorded_one_has_no_cost(
    run_bench, document, run_replay, saved_pair
):
    pair = ["model=hf", f"model.target={saved_pair / 'target'}"]
    shutil.copytree(saved_pair / "target", saved_pair / "mine")
    names = ["decoder=[greedy,speculative]", *TINY]
    assert run_bench(*names, f"model.draft={saved_pair / 'mine'}", "results_dir=by_mine")[0] == 0
    replayed = ["recording=by_mine", "decoder=[speculative]", "model.dtype=float32"]
    row = run_replay(*replayed)[1]["decoders"]["speculative"]
    assert row["draft_calls_per_token"] and row.get("calls_per_token") is None
    row = document("replay", *replayed, *pair, "model.draft=mine")["decoders"]["speculative"]
    assert row["calls_per_token"]


def test_a_decoder_that_lacks_a_prediction_does_not_lose_the_others(
    run_bench, run_replay, saved_pair
):
    recording = [*TINY, "record_predictions=true", "results_dir=short"]
    assert run_bench("decoder=[greedy,lookahead]", *recording)[0] == 0
    code, document, err = run_replay(
        "recording=short", "decoder=[greedy,lookahead]", "decoder.lookahead.window_size=9"
    )
    assert code == 2 and list(document["decoders"]) == ["greedy"]
    assert "error: Lookahead asks for a prediction that the recording does not hold" in err
    assert "(Ouroboros also with runners_up=false)" in err


def test_the_table_has_the_headings_of_reports_and_fits_on_100_columns(call, saved_pair):
    (saved_pair / "one.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    options = ["recording=one.jsonl", "decoder=[prompt_lookup_adaptive]", "costs=epyc"]
    _, out, _ = call("replay", *options)
    *shown, _ = out.splitlines()
    assert max(map(len, shown)) <= 100
    headings = re.split("  +", shown[2].strip())
    assert headings[:2] == ["decoder", "tokens/call"] and headings[-1] == "predicted speedup"
