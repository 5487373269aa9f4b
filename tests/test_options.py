"""Impossible values of a config are one line that names option, value and remedy."""

import copy

import pytest

from ouroboros.bench.options import check_options

GOOD = {
    "max_new": None,
    "repeats": 1,
    "seed": 0,
    "top_k": 0,
    "threads": None,
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0,
    "overwrite": False,
    "retry_failed": False,
    "save_pools": False,
    "timing": True,
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
        ("threads", "many", "threads=many: give a whole number, 1 or more, or null"),
        ("threads", 0, "threads=0: give"),
        ("repeats", None, "repeats=None: give a whole number, 1 or more$"),
        ("max_new", 1.5, r"max_new=1\.5: give"),
        ("task/limit", "all", r"task\.limit=all: give"),
        ("temperature", "hot", "temperature=hot: give a number"),
        ("overwrite", "yes", "overwrite=yes: give true or false"),
        ("save_pools", True, r"save_pools=true, but .* decoder\.ouroboros\.pool_state=task"),
        ("decoder/ouroboros/pool_state", "loaded", r"decoder\.ouroboros\.pool=<file>"),
        ("decoder/ouroboros/pool", "p.json", r"decoder\.ouroboros\.pool_state=loaded or task"),
    ],
)
def test_mistakes_are_named(path, value, says):
    with pytest.raises(ValueError, match=says) as refusal:
        check_options(changed(path, value))
    assert "\n" not in str(refusal.value)
