"""Which trees a run keeps, and that they survive what samples survive."""

import json
from dataclasses import replace

import pytest
from bench_models import tiny_pair

from ouroboros.bench.run import folder as store
from ouroboros.bench.run.folder import TREES, ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.tasks.task import Example
from ouroboros.decode import RootOnly
from ouroboros.tree import TokenTree


class Letters:
    """Prompts of letters, not scored."""

    name, version, licence, max_new, stop = "letters", "1", "none", 9, ()

    def load(self):
        return [Example(f"p{i}", "abcdefgh"[i:] * 3) for i in range(3)]

    def score(self, example, completion):
        return {}


class Guess(RootOnly):
    """Proposes three siblings."""

    def propose(self, tokens, budget):
        branches = [[2], [3], [5]] if budget > 1 else []
        return TokenTree.chain(tokens[-1], ()).graft(branches, source="draft")


class Sure(Guess):
    """Says how likely each node is."""

    def propose(self, tokens, budget):
        tree = super().propose(tokens, budget)
        return replace(tree, probability=(1.0, 0.5, 0.25, 0.125)[: len(tree)])


@pytest.fixture(scope="module")
def bench() -> Bench:
    target, _ = tiny_pair()
    task, decoders = Letters(), {"greedy": RootOnly, "guess": Guess, "sure": Sure}
    return Bench(target, [target], task, task.load(), decoders, task.max_new, repeats=2)


def ran(bench, path, **changes):
    folder = ResultsFolder(path)
    folder.open_run({})
    replace(bench, **changes).run(folder, lambda sample: None)
    return folder


def test_a_run_keeps_the_trees_of_those_that_are_sure_in_the_first_repeat(bench, tmp_path):
    folder = ran(bench, tmp_path)
    trees, samples = folder.load_trees(), {s.key: s for s in folder.load_samples()}
    assert set(trees) == {(f"p{i}", "sure", 0) for i in range(3)}
    for key, steps in trees.items():
        assert len(steps) == len(samples[key].steps)
        text = [t for one in steps for t in (*(one.tree.tokens[n] for n in one.path[1:]), one.then)]
        assert text == list(samples[key].new_tokens)
        assert steps[0].tree.probability == (1.0, 0.5, 0.25, 0.125)
        assert steps[0].tree.source == ("", "draft", "draft", "draft")


def test_all_drafters_or_none_on_demand(bench, tmp_path):
    every = ran(bench, tmp_path / "all", record_trees=True).load_trees()
    assert {name for _, name, _ in every} == {"guess", "sure"}
    assert not ran(bench, tmp_path / "none", record_trees=False).load_trees()
    assert not (tmp_path / "none" / TREES).exists()


def test_trees_survive_a_torn_line_and_come_once(bench, tmp_path):
    folder = ran(bench, tmp_path)
    whole = folder.load_trees()
    samples, trees = tmp_path / "samples.jsonl", tmp_path / TREES
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:4]))
    trees.write_text(trees.read_text()[:-20])
    assert set(folder.load_trees()) < set(whole)
    assert ran(bench, tmp_path).load_trees() == whole


def test_a_full_file_takes_no_more(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MOST_TREE_BYTES", 1)
    assert len(ran(bench, tmp_path).load_trees()) == 1


def test_a_line_is_small(bench, tmp_path):
    line = json.loads((ran(bench, tmp_path).path / TREES).read_text().splitlines()[0])
    assert line["sources"] == ["", "draft"] and "probe" not in line["steps"][0]
