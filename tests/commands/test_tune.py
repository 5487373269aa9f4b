"""`ouroboros tune`: its trials go by the costs given; what cannot be tuned is one line."""

import json

import pytest
from measured import sample, step

import ouroboros
from ouroboros.commands.configs import SPACES
from ouroboros.commands.tune import speed
from ouroboros.costs.named import named
from ouroboros.costs.surface import Costs, Surface
from ouroboros.drafters.growth.weights import Weights

ROLES = ("target", "draft")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--decoders", "speculative", "medusa"],
            "error: nothing to tune of medusa: conf/tune has hf_assisted",
        ),
        (
            ["--decoders", "lookahead", "--overrides", "model=hf", "model.target=no/such"],
            "error: cannot load 'no/such'",
        ),
    ],
)
def test_what_cannot_be_tuned_is_told_in_one_line(call, words, says):
    code, _, error = call("tune", *words, pair=False)
    assert code == 2 and error.startswith(says) and error.count("\n") == 1


def test_trials_go_by_the_costs_that_are_given(call, saved_pair, monkeypatch):
    monkeypatch.setitem(SPACES, "ouroboros_text", {"max_nodes": [16, 32]})
    told = []

    class Priced(ouroboros.Ouroboros):
        def __init__(self, draft=None, *, costs=None, **options):
            told.append(costs)
            super().__init__(draft, costs=costs, **options)

    monkeypatch.setattr(ouroboros, "Ouroboros", Priced)
    pair = [f"model.{role}={saved_pair / role}" for role in ("target", "draft")]
    own = ["model=hf", *pair, "model.dtype=float32", "costs=flat"]
    words = ["--decoders", "ouroboros_text", "--trials", "2", "--limit", "2", "--first", "1"]
    results = str(saved_pair / "tuned")
    words += ["--max-new", "4", "--results", results, "--overrides", *own]
    code, out, error = call("tune", *words, pair=False)
    assert code == 0, error
    assert f"results: {results}\n" in error
    settings = json.loads(out.splitlines()[-1])["ouroboros_text"]
    assert settings["max_nodes"] in (16, 32, 64), "as configured, or as tried"
    assert "{}" not in out
    kept = json.loads((saved_pair / "tuned" / "tuning.json").read_text())
    assert all(row["settings"]["max_nodes"] for row in kept["finalists"])
    assert told and all(one == named("flat") for one in told)


def test_a_setting_is_as_fast_as_its_calls_cost():
    one_large = [sample("a", "d", [step(3, 2)])]
    three_small = [sample("a", "d", [step(0, 0)] * 3)]
    flat, steep = (Costs(Surface.flat({1: 1.0, 4: cost})) for cost in (1.0, 6.0))
    assert speed(one_large, flat) == pytest.approx(3) and speed(three_small, flat) == 1
    assert speed(one_large, steep) == pytest.approx(0.5) and speed(three_small, steep) == 1
    failed = [*three_small, sample("b", "d", [step(0, 0)], error="no memory")]
    assert speed(failed, flat) == 1 and speed([], flat) == 0


def test_estimates_are_fitted_to_a_pair_and_shown(call, saved_pair, tmp_path):
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"ab{i}cd ef"}) + "\n" for i in range(5)))
    out, models = tmp_path / "new" / "w.json", [f"model.{r}={saved_pair / r}" for r in ROLES]
    words = ["--fit", str(out), "--prompts", str(prompts), "--max-new", "12"]
    code, said, _ = call("tune", *words, "--overrides", "model=hf", *models, pair=False)
    assert code == 0 and "with the draft's view: log loss" in said and str(out) in said
    assert Weights.load(out).about["prompts"] == {"mine": 5}
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_too_few_prompts_for_a_fit_are_told(call, saved_pair, tmp_path):
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "ab"}\n')
    models = [f"model.{role}={saved_pair / role}" for role in ROLES]
    words = ["--fit", str(tmp_path / "w.json"), "--prompts", str(prompts)]
    code, _, error = call("tune", *words, "--overrides", "model=hf", *models, pair=False)
    assert code == 2 and error.endswith("error: 1 prompts are too few: give 5 or more\n")
