"""The options of a run: ranges, combinations, and the plain values in run.json."""

import json

import pytest

from ouroboros.bench.run.config import RunConfig
from ouroboros.cli.common import CALLERS, one_line
from ouroboros.decoder_factory import check_decoders

GOOD = {
    "model": {"name": "tiny", "target": "a/b", "draft": "a/c"},
    "task": {"_target_": "ouroboros.bench.tasks.humaneval.HumanEval", "limit": None},
    "decoder": {
        "greedy": {"_target_": "ouroboros.baselines.Greedy"},
        "ouroboros": {"_target_": "ouroboros.Ouroboros", "draft": "a/c", "pool_state": "cold"},
    },
}


def config(path: str = "seed", value: object = 0) -> RunConfig:
    return RunConfig.from_mapping(GOOD).replaced({path: value})


def test_a_config_is_the_same_after_run_json_but_for_what_is_overridden():
    whole = config().to_mapping()
    assert RunConfig.from_mapping(json.loads(json.dumps(whole))).to_mapping() == whole
    changed = config().replaced({"task.limit": 2, "decoder.ouroboros.pool_state": "task"})
    assert changed.task.limit == 2 and changed.needs_draft
    assert changed.decoder["ouroboros"]["pool_state"] == "task"


INTEGER = "could not be converted to Integer"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("audit", "some", "audit=some: choose one of none, differing, all"),
        ("repetition_penalty", "high", "repetition_penalty: Value 'high' of type 'str'"),
        ("threads", 0, "threads=0: give a whole number, 1 or more, or null"),
        ("repeats", None, "repeats: Incompatible value 'None' for field of type 'int'"),
        ("overwrite", "maybe", "overwrite: Value 'maybe' is not a valid bool"),
        ("thread", 4, "no option 'thread' (did you mean threads?); choose from audit"),
        ("task.limit", "all", "task.limit=all: give"),
        ("task.shuffle", [], "task.shuffle=[]: give a whole number, 0 or more, or null"),
        ("temperature", -1, "temperature=-1.0: give a number of 0 (greedy) or more"),
        ("model", [], "list is not a subclass of PairSpec"),
        ("model.standin", {"a": "b"}, "give a shape for each role, as {target: yi-34b"),
        ("model.max_len", "long", f"model.max_len: Value 'long' of type 'str' {INTEGER}"),
        ("model.draft_head", "some", "model.draft_head=some: give a whole number"),
        ("decoder.greedy", 3, "decoder.greedy: Value 3 (int) is incompatible"),
        ("record_predictions", True, "give timing=false as well"),
    ],
)
def test_wrong_values_are_named_in_one_line(path, value, says):
    with pytest.raises(CALLERS) as refusal:
        config(path, value)
    assert says in one_line(refusal.value) and "\n" not in one_line(refusal.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gama": 3}, r"decoder\.x has no option 'gama'; choose from draft, max_nodes"),
        ({"max_nodes": "x"}, r"decoder\.x\.max_nodes=x: give a whole number"),
        ({"recycle": 1}, r"decoder\.x\.recycle=1: give true or false"),
        ({"_target_": "no.such.Class"}, "there is no such class"),
        ({"_target_": "ouroboros.baselines.Nope"}, "there is no such class"),
    ],
)
def test_arguments_of_a_decoder_are_checked_before_a_model_is_loaded(options, says):
    with pytest.raises(ValueError, match=says):
        check_decoders({"x": {"_target_": "ouroboros.Ouroboros", **options}})
    check_decoders({"x": {"_target_": "ouroboros.baselines.hf.HFGenerate", "anything": 1}})
