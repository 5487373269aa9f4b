"""`ouroboros profile` end to end on a tiny pair, and its error messages; no time is asserted."""

import json
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from ouroboros.costs import Costs, timing

TINY = ["task.limit=2", "max_new=6", "threads=1", "model.dtype=float32"]
TINY += ["profile.nodes=[1,4,64]", "profile.contexts=[8,24]", "profile.visits=1", "profile.calls=1"]


@pytest.fixture
def run_profiling(document, monkeypatch):
    """Profile, and return the document."""
    monkeypatch.setattr(timing, "copy_bandwidth", lambda device: 1e10)
    return partial(document, "profile", *TINY)


def test_a_profile_is_a_results_folder_with_costs(run_profiling, saved_pair):
    names = "decoder=[greedy,speculative,ouroboros,hf_assisted]"
    document = run_profiling(names, "results_dir=profiled")
    calls = [(row["model"], row["context"], row["nodes"]) for row in document["calls"]]
    assert calls == list(product(("target", "draft"), (8, 24), (1, 4, 64)))
    steps = {row["decoder"]: row for row in document["steps"]}
    ours = steps["ouroboros"]
    phases = [ours[f"{phase}_ms"] for phase in ("draft", "verify", "host")]
    assert sum(phases) == pytest.approx(ours["step_ms"]) and 0 < ours["wait_ms"] < ours["step_ms"]
    assert steps["hf_assisted"]["verify_ms"] is None
    folder = saved_pair / "profiled"
    made = {"costs.json", "profile.md"}
    found = {path.name for path in folder.iterdir()}
    made |= {"run.json", "samples.jsonl", "tokenizer.json.gz"}
    assert found - {"trees.jsonl"} == made  # trees: if drafting paid
    assert str(saved_pair) not in (folder / "profile.md").read_text()
    costs = Costs.load(folder / "costs.json")
    assert costs.draft is not None and list(costs.target.ms) == list(costs.draft.ms) == [8, 24]
    assert set(costs.host_ms) == {"", "greedy", "speculative", "ouroboros"}
    floor_ms = {r["model"]: r["floor_ms"] for r in document["calls"] if r["context"] == 24}
    assert floor_ms == pytest.approx({n: costs.floor_ms(n, 24) for n in ("target", "draft")})


def test_a_resumed_profile_keeps_its_costs(run_profiling, saved_pair, call, monkeypatch):
    folder = saved_pair / "halved"
    run_profiling("decoder=[greedy]", "results_dir=halved")
    before, run = Costs.load(folder / "costs.json"), json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "status": "interrupted"}))
    monkeypatch.setattr(Costs, "measure_grid", None)
    run_profiling("decoder=[greedy]", "results_dir=halved")
    after = Costs.load(folder / "costs.json")
    assert (after.target, after.draft) == (before.target, before.draft)
    options = "decoder=[greedy]", "results_dir=halved", "profile.contexts=[8]"
    code, _, err = call("profile", *TINY, *options)
    assert code == 2 and "profile.contexts=[8, 24]" in err and "overwrite=true" in err
    replace(before, about={"measured": "at load"}).save(folder / "costs.json")  # by `bench`
    code, _, err = call("profile", *TINY, *options[:2])
    assert code == 2 and "halved has costs measured with another command: resume it" in err


def test_without_a_draft_only_the_target_is_timed(run_profiling, saved_pair):
    document = run_profiling("decoder=[greedy]", "results_dir=alone")
    assert {row["model"] for row in document["calls"]} == {"target"}
    assert Costs.load(saved_pair / "alone" / "costs.json").draft is None
