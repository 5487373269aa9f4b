"""Whole runs of the tree grower: compiled and in Python, bounded, reproducible, saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from growing_texts import chain_text, growth, step
from quick import mostly_slow

from ouroboros.core import jit
from ouroboros.drafters.draft_tree import state, tree_grower

RUN = """
from growing_texts import chain_text, growth, step

for vocab, seed, nodes, children in ((12, None, 40, 3), (60, 7, 24, 3), (3, 1, 16, 2)):
    grown = growth(vocab=4, call=0.1, max_nodes=nodes, children=children)
    for prompt, known in enumerate((1, 2, 40)):
        text = chain_text(200, vocab, seed=prompt)
        grown.start(seed=seed, temperature=0.0 if seed is None else 0.7)
        until = known + {tokens}
        while known < until:
            known += step(grown, text, known, vocab=vocab)
            print(grown.proposal())
"""


def run(code: str = RUN.format(tokens=12), **variables: str) -> str:
    """The output of Python code in a process of its own."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("tokens", mostly_slow([12, 6], quick=[6]))
def test_compiled_and_python_grow_the_same_trees(tokens, capsys):
    code = RUN.format(tokens=tokens)
    in_python = run(code, NUMBA_DISABLE_JIT="1", PYTHONWARNINGS="error::RuntimeWarning")
    exec(code, {})
    assert in_python.count("TokenTree") > 5 * tokens and capsys.readouterr().out == in_python


@pytest.mark.slow
def test_no_index_leaves_its_array(tmp_path):
    run(NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))


def test_without_a_writable_cache_folder_nothing_is_cached_and_nothing_raises(tmp_path):
    (tmp_path / "file").touch()
    code = "from ouroboros.drafters.draft_tree import grow, state; print(state.CACHE)"
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path / "file")).strip() == "None"


@pytest.mark.parametrize(
    ("files", "warning"),
    [([], "compiling the drafter"), (None, "writable"), (["grow.begin.nbi"], "")],
)
def test_a_warning_precedes_a_long_compilation(monkeypatch, tmp_path, files, warning):
    said, before = [], []
    load = tree_grower.Weights.load
    for name in files or ():
        (tmp_path / name).touch()
    monkeypatch.setattr(state, "CACHE", None if files is None else tmp_path)
    monkeypatch.setattr(jit.log, "warning", said.append)
    monkeypatch.setattr(tree_grower.Weights, "load", lambda: before.append(list(said)) or load())
    tree_grower.warm_up_jit.__wrapped__()
    assert said == before[0] and len(said) == bool(warning)
    assert all(warning in text for text in said)


def test_the_host_always_calls_compiled_functions_with_the_same_types(monkeypatch):
    """Through new prompts, longer arrays, wider vocabularies and a restored memory."""
    calls = [
        function
        for function in vars(tree_grower.grow).values()
        if isinstance(function, state.HostCall)
    ]
    assert len(calls) == 6
    monkeypatch.setattr(state.HostCall, "__call__", lambda self, *args: self.dispatcher(*args))
    grown = growth(vocab=4, call=0.1)
    for vocab, seed, known in ((3, None, 1), (60, 7, 2), (60, 7, 1500)):
        text = chain_text(known + 200, vocab)
        grown.start(seed=seed, temperature=0.0 if seed is None else 0.7)
        for _ in range(6):
            known += step(grown, text, known, vocab=vocab)
            assert len(grown.offer()) <= len(grown.proposal(1)) or grown.decline() is None
        grown.load_state_dict(grown.state_dict())
    assert {len(call.dispatcher.signatures) for call in calls} == {1}


def trees(grown, *, prompts=(0,)) -> list:
    found = []
    for seed in prompts:
        text, known = chain_text(300, 20, seed=seed), 100
        grown.start()
        while known < 140:
            known += step(grown, text, known, vocab=20)
            found.append(grown.proposal())
    return found


def test_a_run_repeats_itself_and_nothing_forgotten_leaves_a_trace():
    once = trees(growth(call=0.1, start=False))
    grown = growth(call=0.1, start=False)
    trees(grown, prompts=(5, 6))
    grown.forget()
    assert trees(grown) == once


def test_rates_start_from_the_priors_and_earlier_texts_stay():
    grown = growth(call=0.1, start=False)
    trees(grown, prompts=(1,))
    learned = grown.tokens_per_cost
    grown.start()
    assert learned != grown.tokens_per_cost == growth(call=0.1).tokens_per_cost
    assert trees(grown, prompts=(2,)) != trees(growth(call=0.1, start=False), prompts=(2,))


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(tree_grower, "MAX_TEXT", 500)
    grown = growth()
    for seed in range(8):
        trees(grown, prompts=(seed,))
        assert grown.state.length <= 500 + 300


def test_prompts_of_one_token_and_new_ids():
    grown = growth(vocab=4)
    text = [7, 5000, 7, 5000, 7, 5000, 70_000, 7, 5000, 7, 5000, 7]
    for known in range(1, 12):
        grown.begin(text[:known], 3, -1)
        made = grown.proposal()
        grown.learn([90_000] * len(made), [0])
    assert made.tokens[1] in (7, 90_000)


DAMAGED = {
    "another size": {"recycled": [[1, 2, 3]]},
    "no token": {"recycled": [[1, 2, 3, 4, 5, 6, -1]]},
    "a huge id": {"text": [2_000_000_000]},
    "an id beyond int64": {"text": [10**30]},
    "a negative id": {"text": [-2]},
    "words": {"text": ["a"]},
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_state_is_refused_and_changes_nothing(content):
    grown = growth()
    trees(grown)
    before = grown.state_dict()
    with pytest.raises((ValueError, LookupError)):
        grown.load_state_dict({**before, **content})
    assert grown.state_dict() == before
