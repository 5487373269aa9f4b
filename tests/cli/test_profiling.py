"""`ouroboros profile` end to end on a tiny pair, and its refusals; no time is asserted."""

import json

import pytest

from ouroboros.cli import profiling
from ouroboros.costs import Costs, bandwidth

TINY = ["task.limit=2", "max_new=6", "threads=1", "model.dtype=float32"]
TINY += ["profile.nodes=[1,4,64]", "profile.contexts=[8,24]", "profile.visits=1", "profile.calls=1"]


@pytest.fixture
def run_profiling(call, monkeypatch):
    """Return exit code, stdout's lines and stderr."""
    monkeypatch.setattr(bandwidth, "copy_bandwidth", lambda device: 1e10)

    def run(*overrides: str) -> tuple[int, list[str], str]:
        code, out, err = call("profile", *TINY, *overrides)
        return code, out.splitlines(), err

    return run


def test_a_profile_is_a_results_folder_with_costs(run_profiling, saved_pair):
    names = "decoder=[greedy,speculative,ouroboros,hf_assisted]"
    trace = ["profile.trace=true", "profile.trace_steps=2"]
    code, out, err = run_profiling(names, *trace, "results_dir=profiled")
    assert code == 0, err
    document = json.loads(out[-1])
    assert document["finished"] and set(document["floor_share"]) == {"target", "draft"}
    ours = document["decoders"]["ouroboros"]
    assert sum(ours["share"].values()) == pytest.approx(1) and 0 < ours["wait_share"] < 1
    assert document["decoders"]["hf_assisted"]["share"] is None
    folder = saved_pair / "profiled"
    made = {"costs.json", "profile.json", "profile.md", "verify_cost.png", "step_time.png"}
    made.add("trees.jsonl")
    assert {path.name for path in folder.iterdir()} == made | {"run.json", "samples.jsonl"}
    facts = json.loads((folder / "profile.json").read_text())
    assert set(facts["operators"]) == {"greedy", "speculative", "ouroboros"}
    for traced in facts["operators"].values():
        assert traced["host"] and traced["python"] and not traced["device"]
    assert str(saved_pair) not in (folder / "profile.md").read_text()
    costs = Costs.load(folder / "costs.json")
    assert costs.draft is not None and list(costs.target.ms) == list(costs.draft.ms) == [8, 24]
    assert set(costs.host_ms) == {"", "greedy", "speculative", "ouroboros"}
    assert costs.floor_ms("target", 24) == pytest.approx(facts_floor(facts, 24))


def test_a_profile_that_goes_on_keeps_its_costs(run_profiling, saved_pair, monkeypatch):
    folder = saved_pair / "halved"
    assert run_profiling("decoder=[greedy]", "results_dir=halved")[0] == 0
    before, run = Costs.load(folder / "costs.json"), json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "status": "interrupted"}))
    monkeypatch.setattr(profiling, "measured_costs", None)
    code, _, err = run_profiling("decoder=[greedy]", "results_dir=halved")
    assert code == 0, err
    after = Costs.load(folder / "costs.json")
    assert (after.target, after.draft) == (before.target, before.draft)


def facts_floor(facts: dict, context: int) -> float:
    rows = facts["calls"]["target"]["points"]
    return next(row["floor_ms"] for row in rows if row["context"] == context)


def test_without_a_draft_the_target_alone_is_timed(run_profiling, saved_pair):
    code, out, err = run_profiling("decoder=[greedy]", "results_dir=alone")
    assert code == 0, err
    assert list(json.loads(out[-1])["floor_share"]) == ["target"]
    assert Costs.load(saved_pair / "alone" / "costs.json").draft is None
    code, _, err = run_profiling("decoder=[greedy]", "results_dir=alone")
    assert code == 2 and "overwrite=true" in err


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("profile.nodes=[]", "profile.nodes=[]: give a list"),
        ("profile.contexts=[0]", "profile.contexts=0: give a whole number, 1 or more"),
        ("profile.contexts=[9999]", "8192 positions: measure shorter contexts"),
        ("profile.calls=few", "profile.calls=few: give a whole number"),
        ("profile.trace=2", "give true or false"),
        ("timing=false", "a profile is of times"),
    ],
)
def test_mistakes_are_one_line(run_profiling, override, says):
    code, out, err = run_profiling("decoder=[greedy]", "results_dir=refused", override)
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert code == 2 and not out and len(lines) == 1 and says in lines[0], err
