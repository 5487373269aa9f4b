"""What is said of compiling: before it begins, and nothing where it was done before."""

import json
import os
import subprocess
import sys

import pytest

from ouroboros.drafters.draft_tree import ready
from ouroboros.drafters.draft_tree.compiled import COMPILED

needed = pytest.mark.skipif(not COMPILED, reason="numba is not installed")


@needed
@pytest.mark.parametrize("cold", [True, False])
def test_it_is_said_before_it_begins_and_only_where_it_is_needed(monkeypatch, cold):
    told, before = [], []
    load = ready.Weights.load
    monkeypatch.setattr(ready, "is_compiled", lambda: not cold)
    monkeypatch.setattr(ready.log, "warning", lambda text, *_: told.append(text))
    monkeypatch.setattr(ready.Weights, "load", lambda: before.append(list(told)) or load())
    ready.warm_up_jit.__wrapped__()
    assert any("compiling the drafter" in text for text in before[0]) == cold
    assert told == before[0]


@pytest.mark.slow
@needed
def test_a_cold_cache_is_told_from_a_warm_one(tmp_path):
    ready.warm_up_jit()
    assert ready.is_compiled()
    words = (
        "from ouroboros.drafters.draft_tree import ready; print(str(ready.is_compiled()).lower())"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", words], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) is False
