"""`ouroboros tune`: its trials go by the costs given; what cannot be tuned is one line."""

import json

import pytest

import ouroboros
from ouroboros.commands.configs import SPACES
from ouroboros.costs.named import named


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
    assert "ouroboros_text" in json.loads(out.splitlines()[-1])
    assert told and all(one == named("flat") for one in told)
