"""Whole runs of growing: compiled and plain, bounded, repeatable, remembered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from growing_texts import chain_text, depths, growth, ranking, step

from ouroboros.drafters.draft_tree import growth as module
from ouroboros.drafters.draft_tree.compiled import COMPILED
from ouroboros.drafters.draft_tree.weights import Weights

RUN = """
import json, sys
from growing_texts import chain_text, depths, growth, ranking, step
from ouroboros.drafters.draft_tree import growth as module, state

class Checked(list):
    "A list that takes no index below 0."
    def __getitem__(self, at):
        assert isinstance(at, slice) or at >= 0, at
        return super().__getitem__(at)
    def __setitem__(self, at, value):
        assert at >= 0, at
        super().__setitem__(at, value)

if "checked" in sys.argv:
    module.filled = lambda size, value, wide=False: Checked([value] * size)
    module.longer = lambda a, size, value, wide=False: Checked(a + [value] * (size - len(a)))

made = []
for vocab, seed, nodes, kids in ((12, None, 40, 3), (60, 7, 24, 3), (3, 1, 16, 2)):
    grown = growth(vocab=4, call=0.1, max_nodes=nodes, kids=kids)
    if "checked" in sys.argv:
        for name, value in vars(grown.state).items():
            if isinstance(value, list):
                setattr(grown.state, name, Checked(value))
    for prompt, known in enumerate((1, 2, 40)):
        text = chain_text(200, vocab, seed=prompt)
        grown.start(seed=seed, temperature=0.0 if seed is None else 0.7)
        until = known + (10 if "checked" in sys.argv else 25)
        while known < until:
            known += step(grown, text, known, vocab=vocab)
            made.append(grown.proposal())
print(json.dumps(made))
"""


def run(compiled: bool, *arguments: str) -> list:
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "OUROBOROS_COMPILED": str(int(compiled))}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(not COMPILED, reason="numba is not installed")
def test_compiled_and_plain_grow_the_same_trees():
    plain = run(False)
    assert len(plain) > 60 and run(True) == plain


@pytest.mark.slow
def test_no_index_leaves_its_array():
    run(False, "checked")


def test_depths_are_handed_out_with_the_nodes():
    text, grown = chain_text(80, 12), growth(vocab=12, call=0.05)
    grown.start()
    asked = grown.begin(text[:60], 40, 40)
    assert asked
    while asked:
        nodes = grown.asked()
        assert list(nodes.depths) == depths(nodes.parents)
        asked = grown.scored(*ranking(nodes, asked, 12))
    made = grown.proposal()
    assert len(made.tokens) > 1 and list(made.depths) == depths(made.parents)


def test_a_run_repeats_itself():
    assert trees(growth(call=0.1)) == trees(growth(call=0.1))


def trees(grown, *, prompts=(0,)) -> list:
    found = []
    for seed in prompts:
        text = chain_text(300, 20, seed=seed)
        grown.start()
        known = 100
        while known < 140:
            known += step(grown, text, known, vocab=20)
            found.append(grown.proposal())
    return found


def test_what_is_forgotten_leaves_no_trace():
    once = trees(growth())
    grown = growth()
    trees(grown, prompts=(5, 6))
    grown.forget()
    assert trees(grown) == once


def test_what_is_remembered_grows_the_same_trees():
    grown, other = growth(), growth()
    trees(grown, prompts=(1, 2))
    kept = grown.remembered()
    other.restore(kept)
    assert other.remembered() == kept
    assert len(kept.recycled) > 50 and kept.text.count(-1) == 1
    assert trees(other, prompts=(1,)) == trees(grown, prompts=(1,))


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 500)
    grown = growth()
    for seed in range(8):
        trees(grown, prompts=(seed,))
        assert grown.state.n <= 500 + 300


def test_prompts_of_one_token_and_new_ids():
    grown = growth(vocab=4)
    grown.start()
    for known in range(1, 12):
        text = [7, 5000, 7, 5000, 7, 5000, 70_000, 7, 5000, 7, 5000, 7]
        grown.begin(text[:known], 3, -1)
        made = grown.proposal()
        grown.learn([90_000] * len(made.tokens), [0])
    assert made.tokens[1] in (7, 90_000)


def test_weights_are_read_back(tmp_path):
    shipped = Weights.load()
    shipped.save(tmp_path / "weights.json")
    assert Weights.load(tmp_path / "weights.json") == shipped
    for content in ("{}", "[", json.dumps({"format": "ouroboros-estimates-1", "index": {"a": 1}})):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(ValueError, match="holds no weights"):
            Weights.load(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="cannot read"):
        Weights.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="fit them anew"):
        Weights((1.0,), (2.0,))
