"""`ouroboros advise` end to end on a tiny pair: measured, from a folder, from counts, assumed."""

import json
import re

import advice_check
import pytest

from ouroboros.costs import Costs

SHORT = ["task.limit=2", "max_new=8", "visits=1", "nodes=[1,2,4,8,64,256]"]
"""On the shipped development text, which is found from any folder."""
COUNTS = ["task.limit=2", "max_new=8", "threads=1", "model.dtype=float32", "timing=false"]
CHAIN = ["decoder.speculative.confidence=0.0", "decoder.speculative.gamma=7"]


@pytest.fixture
def run_advise(call):
    """Return exit code, stdout, its document and stderr."""

    def run(*overrides: str) -> tuple[int, str, dict, str]:
        code, out, err = call("advise", "model.dtype=float32", "threads=1", *overrides)
        lines = out.splitlines()
        return code, out, json.loads(lines[-1]) if lines else {}, err

    return run


@pytest.fixture
def recorded(run_bench, saved_pair) -> str:
    """A folder of counts, greedy among them."""
    names = "decoder=[greedy,speculative,prompt_lookup,lookahead,ouroboros]"
    if not (saved_pair / "counts").exists():
        assert run_bench(names, *COUNTS, *CHAIN, "results_dir=counts")[0] == 0
    (saved_pair / "costs.yaml").write_text("verify_ms: {1: 10, 256: 30}\ndraft_ms: 1\nhost_ms: 0\n")
    return "counts"


def test_a_pair_is_measured_and_advised_upon(run_advise, saved_pair):
    names = "decoder=[speculative,lookahead,prompt_lookup]"
    code, out, document, err = run_advise(names, *SHORT, "results_dir=advice")
    assert code == 0, err
    decoders = document["decoders"]
    assert list(decoders) == ["greedy", "speculative", "lookahead", "prompt_lookup"]
    assert decoders["greedy"]["configured"]["speedup"]["value"] == pytest.approx(1.0)
    for found in decoders.values():
        best = found.get("best", found["configured"])
        assert best["tokens_per_s"] >= found["configured"]["tokens_per_s"] > 0
        assert sum(best["shares"].values()) == pytest.approx(1.0)
    assert document["settings_tried"] > 30
    assert "ouroboros bench" in document["best"]["command"]
    assert document["best"]["command"] in out
    assert {p.name for p in (saved_pair / "advice").iterdir()} == {"advice.json", "costs.json"}
    costs = Costs.load(saved_pair / "advice" / "costs.json")
    assert costs.draft is not None and set(costs.host_ms) > {"greedy", "lookahead"}
    code, _, _, err = run_advise(names, *SHORT, "results_dir=advice")
    assert code == 2 and "is not empty" in err


def test_texts_of_one_machine_and_costs_of_another(run_advise, recorded, saved_pair):
    given = [f"runs={recorded}", "decoder=[speculative]", *CHAIN]
    code, _, document, err = run_advise(*given, "costs=costs.yaml")
    assert code == 0, err
    found = document["decoders"]
    assert found["greedy"]["configured"]["cost_per_token"] == pytest.approx(1.0)
    assert all(one["tokens_per_s"] > 0 for one in found["speculative"].values())
    (saved_pair / "slow.yaml").write_text("verify_ms: {1: 10, 256: 30}\ndraft_ms: 9\n")
    code, out, document, err = run_advise(*given, "costs=slow.yaml", "search=false")
    assert code == 0, err
    (line,) = [line for line in document["why"] if line.startswith("speculative is slower")]
    assert "of the time is drafting" in line and line in out


def test_the_command_is_that_of_the_runs_and_of_the_options(
    run_advise, run_bench, recorded, saved_pair
):
    assert run_bench("decoder=[greedy]", *COUNTS, "temperature=0.5", "results_dir=warm")[0] == 0
    costs = ["costs=costs.yaml", "search=false"]
    _, _, document, _ = run_advise("runs=warm", "decoder=[prompt_lookup]", *costs)
    assert document["best"]["command"].endswith("temperature=0.5")
    own = "decoder.speculative.gamma=3"
    (saved_pair / "free.yaml").write_text("verify_ms: {1: 10, 256: 10}\ndraft_ms: 0.1\n")
    given = [f"runs={recorded}", "decoder=[speculative]", "costs=free.yaml", "search=false", own]
    _, _, document, _ = run_advise(*given)
    assert document["best"]["decoder"] == "speculative" and own in document["best"]["command"]


def test_predictions_are_held_against_runs(run_bench, recorded, saved_pair, monkeypatch, capsys):
    names = "decoder=[greedy,speculative,prompt_lookup]"
    assert run_bench(names, *COUNTS[:-1], "timing=true", "results_dir=timed")[0] == 0
    advice_check.main(["timed", "--costs", "costs.yaml", "--out", "checked"])
    document = json.loads((saved_pair / "checked" / "check.json").read_text())
    measured = json.loads((saved_pair / "timed" / "summary.json").read_text())["decoders"]
    assert [point["decoder"] for point in document["points"]] == ["speculative", "prompt_lookup"]
    for point in document["points"]:
        expected = measured[point["decoder"]]["latency_speedup"]["value"]
        assert point["measured"] == pytest.approx(expected) and point["predicted"] > 0
        assert len(point["elsewhere"]) == 2
    text = (saved_pair / "checked" / "check.md").read_text()
    assert text in capsys.readouterr().out and "Costs measured separately" in text


def test_measured_speedups_are_those_of_the_same_settings(run_bench, run_advise):
    names = "decoder=[greedy,prompt_lookup]"
    assert run_bench(names, *COUNTS[:-1], "timing=true", "results_dir=measured")[0] == 0
    given = ["runs=measured", "decoder=[prompt_lookup]", "search=false"]
    for changed in ([], ["decoder.prompt_lookup.num_tokens=9"]):
        _, out, _, err = run_advise(*given, *changed)
        (line,) = [line for line in out.splitlines() if line.startswith("prompt_lookup  ")]
        assert (re.split("  +", line)[4] == "-") == bool(changed), err


def test_a_machine_that_is_not_at_hand(run_advise, recorded):
    shapes = "machine.shapes={target: 01-ai/Yi-34B, draft: yi-6b}"
    machine = [shapes, "machine.bandwidth_gb_s=4300"]
    dtype = "model.dtype=float32"
    names = "decoder=[speculative]"
    code, _, document, err = run_advise(f"runs={recorded}", *machine, dtype, names, "search=false")
    assert code == 0, err
    greedy = document["decoders"]["greedy"]["configured"]
    assert greedy["tokens_per_s"] == pytest.approx(1000 / 15.8, abs=0.5), "shapes are in bfloat16"


def test_arithmetic_is_two_operations_for_a_weight_of_any_dtype(run_advise, recorded, saved_pair):
    """In float32 a call took twice as long: its bytes were taken for weights of two."""
    machine = ["machine.bandwidth_gb_s=1000000", "machine.tflops=0.001"]
    given = [f"runs={recorded}", *machine, "decoder=[speculative]", "search=false"]
    code, _, _, err = run_advise(*given, "results_dir=assumed")
    assert code == 0, err
    costs = Costs.load(saved_pair / "assumed" / "costs.json")
    weights = costs.footprints["target"].read_bytes / 4
    assert costs.target.call_ms(64, 64) == pytest.approx(64 * 2 * weights / 1e9 * 1e3, rel=0.01)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["task.limit=2", "costs=epyc", "nodes=[1,2]", "visits=2"], "nodes, visits: no calls are"),
        (["runs=counts", "machine.bandwidth_gb_s=0"], "give both above 0"),
        (["runs=counts", "costs=epyc", "search=no"], "search=no: give true or false"),
        (["runs=counts", "costs={verify_ms: {2: 9, 64: 9}}"], "greedy is not predicted: a call"),
        (["runs=counts", "machine.bandwidth_gb_s=9", "machine.shapes=yi-34b"], "give {target: yi"),
        (["runs=counts", "machine.bandwidth_gb_s=9", "machine.shapes={a: yi-34b}"], "give {target"),
    ],
)
def test_options_without_an_effect_are_refused(run_advise, recorded, options, says):
    code, _, _, err = run_advise("decoder=[prompt_lookup]", *options)
    assert code == 2 and says in err
