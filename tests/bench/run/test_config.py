"""The options of a run: ranges, combinations, and the plain values in run.json."""

import pytest
from composing import composed

from ouroboros.bench.run.config import RunConfig
from ouroboros.decoder_factory import check_decoders

GOOD = {
    "model": {"name": "tiny", "target": "a/b", "draft": "a/c"},
    "task": {"_target_": "ouroboros.bench.tasks.humaneval.HumanEval", "limit": None},
    "decoder": {
        "greedy": {"_target_": "ouroboros.baselines.Greedy"},
        "ouroboros": {"_target_": "ouroboros.Ouroboros", "draft": "a/c", "pool_state": "cold"},
        "mine": {
            "_target_": "ouroboros.baselines.Speculative",
            "draft": "a/c",
            "verification": "rejection",
        },
    },
}


def config(path: str = "seed", value: object = 0) -> RunConfig:
    return RunConfig.from_mapping(GOOD).replaced({path: value})


def test_defaults_are_those_of_the_config_file():
    plain = composed()
    assert RunConfig.from_mapping(plain).to_mapping() == plain
    own = RunConfig.from_mapping({key: plain[key] for key in ("model", "task", "decoder")})
    assert own.to_mapping() == plain


def test_overrides_name_options_by_their_dotted_names():
    changed = config().replaced({"task.limit": 2, "decoder.ouroboros.pool_state": "task"})
    assert changed.task.limit == 2 and changed.needs_draft
    assert changed.decoder["ouroboros"]["pool_state"] == "task"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("audit", "some", "audit=some: choose one of none, differing, all"),
        ("repetition_penalty", "high", "repetition_penalty=high: give a number"),
        ("threads", "many", "threads=many: give a whole number, 1 or more, or null"),
        ("threads", 0, "threads=0: give"),
        ("repeats", None, "repeats=None: give a whole number, 1 or more$"),
        ("thread", 4, "thread is no option of a run: choose from .*threads"),
        ("max_new", 1.5, r"max_new=1\.5: give"),
        ("task.limit", "all", r"task\.limit=all: give"),
        ("temperature", "hot", "temperature=hot: give a number of 0 .greedy. or more"),
        ("top_p", 0, "top_p=0: give a number above 0, up to 1"),
        ("repetition_penalty", 1.2, r"mine\.verification=rejection supports no"),
        ("model.engine", "fast", r"model\.engine=fast: choose from"),
        ("model.options", [1], r"model\.options=\[1\]: give settings"),
        ("model", [], r"model=\[\]: give settings"),
        ("task", 3, "task=3: give settings"),
        ("task.shuffle", [], r"task\.shuffle=\[\]: give a whole number, 0 or more, or null"),
        ("model.standin", [1], r"model\.standin=\[1\]: give settings, .*, or null"),
        ("model.standin", {"a": "b"}, "give a shape for each role, as {target: yi-34b"),
        ("model.target", 3, r"model\.target=3: give a name, or null"),
        ("decoder.greedy", {}, r"decoder\.greedy={}: give its class too"),
        ("decoder.greedy", 3, r"decoder\.greedy=3: give settings"),
        ("model.max_len", "long", r"model\.max_len=long: give a whole number"),
        ("parallel", "data", "parallel=data: choose one of tree, null"),
        ("overwrite", "yes", "overwrite=yes: choose one of true, false"),
        ("record_predictions", True, "give timing=false as well"),
        ("model.draft_cost", -1, r"model\.draft_cost=-1: give 0 or more, or null"),
        ("model.draft_cost", "x", r"model\.draft_cost=x: give a number, or null"),
        ("published", "x", "published=x: give {source: "),
        ("published", {"tokens_per_sec": {"greedy": 9}}, r"published={'tokens_per_sec'.*: give {"),
        ("published", {"tokens_per_s": {"greedy": 0}}, r"published=.*<number above 0>"),
        ("published", {"tokens_per_s": {"greedy": "fast"}}, r"published=.*<number above 0>"),
        ("published", {"tokens_per_s": 3}, r"published=.*<number above 0>"),
    ],
)
def test_wrong_values_are_named(path, value, says):
    with pytest.raises(ValueError, match=says) as refusal:
        config(path, value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gama": 3}, r"decoder\.x has no option 'gama'; choose from draft, max_nodes"),
        ({"max_nodes": "x"}, r"decoder\.x\.max_nodes=x: give a whole number"),
        ({"max_nodes": True}, r"decoder\.x\.max_nodes=True: give a whole number"),
        ({"recycle": 1}, r"decoder\.x\.recycle=1: give true or false"),
    ],
)
def test_arguments_of_a_decoder_are_checked_before_a_model_is_loaded(options, says):
    with pytest.raises(ValueError, match=says):
        check_decoders({"x": {"_target_": "ouroboros.Ouroboros", **options}})
    check_decoders({"x": {"_target_": "ouroboros.baselines.hf.HFGenerate", "anything": 1}})
