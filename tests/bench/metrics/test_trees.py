"""Recorded trees and outcomes, compared with the loop's and with sums worked out by hand."""

import random
from math import log

import pytest
from bench_models import tiny_pair

from ouroboros.bench.metrics.trees import ProposedTree, calibration, tree_metrics
from ouroboros.bench.run.tree_recorder import Recorder
from ouroboros.decode import RootOnly, decode
from ouroboros.tree import TokenTree

TREE = TokenTree(
    tokens=(5, 6, 7, 8, 9, 6),
    parents=(-1, 0, 0, 1, 1, 2),
    probability=(1.0, 0.5, 0.25, 0.75, 0.1, 0.9),
    source=("", "draft", "phrase", "draft", "draft", "phrase"),
)
STEP = ProposedTree(TREE, path=(0, 1), then=8)


class Branching(RootOnly):
    """Proposes a known text with random slips, and remembers what the target chose."""

    def __init__(self, text):
        self.text, self.draw, self.seen = text, random.Random(4), []

    def propose(self, tokens, budget):
        ahead = self.text[len(tokens) : len(tokens) + min(6, budget - 1)]
        branches = [[t if self.draw.random() < 0.8 else 9 for t in ahead] for _ in range(3)]
        return TokenTree.chain(tokens[-1], ()).graft(branches, source="draft")

    def observe(self, tree, chosen, path):
        self.seen.append((tree, list(chosen), tuple(path)))


def test_outcomes_are_what_the_target_said_at_accepted_nodes():
    target, _ = tiny_pair()
    for prompt in ([3, 4, 5], [7]):
        drafter = Branching(decode(target, RootOnly(), prompt, max_new=40).tokens)
        recorder = Recorder(drafter)
        decode(target, recorder, prompt, max_new=40)
        found, seen = recorder.trees(), drafter.seen
        assert len(found) == len(seen) and any(len(path) > 2 for *_, path in seen)
        for one, (tree, chosen, path) in zip(found, seen, strict=True):
            judged = [(n, p) for n, p in enumerate(tree.parents) if p in path]
            assert list(one.outcomes()) == [(n, tree.tokens[n] == chosen[p]) for n, p in judged]
            assert one.tree is tree and one.path == path


def test_outcomes_count_a_token_after_the_end_and_no_probes():
    assert dict(STEP.outcomes()) == {1: True, 2: False, 3: True, 4: False}
    probing = TokenTree((5, 6, 7), (-1, 0, 0), probe=frozenset({2}))
    assert dict(ProposedTree(probing, (0,), 9).outcomes()) == {1: False}


def test_sizes_sources_and_calibration_against_sums_by_hand():
    alone = ProposedTree(TokenTree((5,), (-1,)), (0,), 6)
    small = ProposedTree(TokenTree((5, 6), (-1, 0)), (0,), 7)
    found = tree_metrics([STEP, small, alone])
    assert found == {**tree_metrics([STEP, small])}, "steps without a draft have no tree"
    assert (found["nodes"], found["depth"]) == (3.0, 1.5)
    assert found["sources"]["draft"] == {
        **{"proposed": 3, "parent_accepted": 3, "accepted": 2},
        "estimated": pytest.approx((0.5 + 0.75 + 0.1) / 3),
    }
    assert found["sources"]["phrase"]["parent_accepted"] == 1
    assert tree_metrics([alone]) is None and tree_metrics([small])["calibration"] is None
    found = found["calibration"]
    pairs = [(0.5, 1), (0.25, 0), (0.75, 1), (0.1, 0)]
    loss = -sum(log(p if came else 1 - p) for p, came in pairs) / 4
    assert found["log_loss"] == pytest.approx(loss)
    assert found["log_loss_of_the_mean"] == pytest.approx(log(2))
    assert (found["estimated"], found["actual"]) == (pytest.approx(0.4), 0.5)
    sure = calibration([1.0, 0.0], [True, True])
    assert sure["log_loss"] > 5
