"""Costs by name: what is shipped, and what it says."""

import json
import statistics

import pytest
from composing import ROOT

from ouroboros.costs import NAMES, Costs, Surface


@pytest.mark.parametrize("name", NAMES)
def test_a_named_set_covers_large_trees_at_every_context(name):
    costs = Costs.load(name)
    for role in ("target", "draft"):
        surface = getattr(costs, role)
        assert surface.call_ms(96, 10) == surface.call_ms(96, 100_000) > 0
    assert costs.about["machine"]


def test_epyc_is_the_profile_of_the_reference_pair():
    measured = json.loads((ROOT / "results/profile/costs.json").read_text())
    costs = Costs.load("epyc")
    for surface, role in ((costs.target, "target"), (costs.draft, "draft")):
        rows = measured[role]["ms"].values()
        for nodes in next(iter(rows)):
            median = statistics.median(row[nodes] for row in rows)
            assert surface.call_ms(int(nodes), 700) == pytest.approx(median, abs=0.051)


def test_flat_is_flat_up_to_64_nodes():
    costs = Costs.load("flat")
    assert costs.draft is not None
    one = costs.target.call_ms(1, 9)
    assert {costs.target.call_ms(nodes, 9) for nodes in (1, 24, 64)} == {one}
    assert costs.target.call_ms(65, 9) > one and costs.draft.call_ms(24, 9) == 0.18 * one


def test_a_file_will_do_and_nothing_else(tmp_path):
    (tmp_path / "own.yaml").write_text("{verify_ms: {1: 4, 9: 12}, draft_ms: {1: 1, 9: 3}}")
    costs = Costs.load(str(tmp_path / "own.yaml"))
    assert costs == Costs(Surface.flat({1: 4, 9: 12}), Surface.flat({1: 1, 9: 3}))
    with pytest.raises(ValueError, match="costs=steep is neither a file nor one of epyc, flat"):
        Costs.load("steep")


def test_named_sets_survive_their_files(tmp_path):
    for name in NAMES:
        Costs.load(name).save(tmp_path / "costs.json")
        assert Costs.load(tmp_path / "costs.json") == Costs.load(name)
