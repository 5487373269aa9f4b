"""Impossible values of a config are one line that names option, value and remedy."""

import copy

import pytest
from hydra.errors import HydraException

from ouroboros.bench.run.config import check_options
from ouroboros.cli import errors as asking
from ouroboros.decoders import check_decoders

GOOD = {
    "max_new": None,
    "repeats": 1,
    "seed": 0,
    "top_k": 0,
    "threads": None,
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0,
    "repetition_penalty": 1.0,
    "context_tokens": None,
    "audit": "differing",
    "overwrite": False,
    "retry_failed": False,
    "save_pools": False,
    "timing": True,
    "record_predictions": False,
    "costs": None,
    "record_trees": None,
    "task": {"limit": None, "stride": 1},
    "decoder": {"greedy": {}, "ouroboros": {"pool_state": "cold", "pool": None}},
}


def changed(path: str, value) -> dict:
    config = copy.deepcopy(GOOD)
    *parents, name = path.split("/")
    place = config
    for parent in parents:
        place = place[parent]
    place[name] = value
    return config


def test_a_good_config_passes():
    check_options(GOOD)
    check_options({**changed("decoder/ouroboros/pool_state", "task"), "save_pools": True})


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
        ("task/limit", "all", r"task\.limit=all: give"),
        ("temperature", "hot", "temperature=hot: give a number, or matched"),
        ("overwrite", "yes", "overwrite=yes: give true or false"),
        ("save_pools", True, r"save_pools=true, but .* decoder\.ouroboros\.pool_state=task"),
        ("record_predictions", True, "give timing=false as well"),
        ("record_trees", "yes", "give true, false or null"),
        ("decoder/ouroboros/pool_state", "loaded", r"decoder\.ouroboros\.pool=<file>"),
        ("decoder/ouroboros/pool", "p.json", r"decoder\.ouroboros\.pool_state=loaded or task"),
    ],
)
def test_wrong_values_are_named(path, value, says):
    with pytest.raises(ValueError, match=says) as refusal:
        check_options(changed(path, value))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"gama": 3},
            r"decoder\.x has no option 'gama'; choose from draft, max_nodes",
        ),
        ({"max_nodes": "x"}, r"decoder\.x\.max_nodes=x: give a whole number"),
        ({"max_nodes": True}, r"decoder\.x\.max_nodes=True: give a whole number"),
        ({"recycle": 1}, r"decoder\.x\.recycle=1: give true or false"),
    ],
)
def test_arguments_of_a_decoder_are_checked_before_a_model_is_loaded(options, says):
    with pytest.raises(ValueError, match=says):
        check_decoders({"x": {"_target_": "ouroboros.Ouroboros", **options}})
    check_decoders({"x": {"_target_": "ouroboros.baselines.hf.HFGenerate", "anything": 1}})


def test_hydras_own_refusals_become_one_line(monkeypatch, capsys):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def main():
        raise HydraException("In 'config': Could not load 'decoder/foo'.\n\nConfig search path:\nx")

    assert asking.report_cli_errors(main) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: there is no decoder 'foo'; choose from greedy, hf_assisted, ")
    assert "/" not in told and told.count("\n") == 1
