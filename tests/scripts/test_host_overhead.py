"""Models that compute nothing: the same steps on every machine, and a known host time."""

from __future__ import annotations

import json
import random

import host_overhead
import pytest
from host_overhead import Script, draft_script, host_time
from ouroboros.baselines import Lookahead, PromptLookup, Speculative
from tiny import SIZES

from ouroboros import Ouroboros, OuroborosPaper
from ouroboros.bench.replay.scripted import ScriptedModel
from ouroboros.decode import RootOnly

DRAW = random.Random(5)
TEXT = [DRAW.randrange(20) for _ in range(400)]
DRAFTERS = {
    "plain": lambda model: RootOnly(),
    "speculative": lambda model: Speculative(model, gamma=4, confidence=0.4),
    "lookahead": lambda model: Lookahead(**SIZES),
    "prompt_lookup": lambda model: PromptLookup(max_ngram_size=2, num_tokens=4),
    "ouroboros": lambda model: Ouroboros(model, adapt=False),
    "paper": lambda model: OuroborosPaper(model, gamma=4, **SIZES),
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_follows_the_script_in_the_same_steps(name, size):
    """The time that the scripts themselves take is left out."""
    counts, draft = [], ScriptedModel()
    for _ in range(2):
        scripts = [(Script(TEXT[i:]), draft_script(TEXT[i:], 0.8)) for i in range(size)]
        seconds, rows = host_time(lambda: DRAFTERS[name](draft), scripts, prompt=50, max_new=80)
        assert seconds > 0 and all(script.spent_s > 0 for script, _ in scripts)
        assert [row.trace.tokens for row in rows] == [TEXT[i : i + 130] for i in range(size)]
        counts.append([(s.draft_calls, s.new) for row in rows for s in row.trace.steps])
    assert counts[0] == counts[1]


def test_a_draft_agrees_as_often_as_it_is_told():
    said = draft_script(TEXT * 10, 0.7).text
    agreed = sum(a == b for a, b in zip(said, TEXT * 10, strict=True)) / len(said)
    assert agreed == pytest.approx(0.7, abs=0.03)


def test_the_script_prints_a_table_and_one_document(capsys, monkeypatch):
    monkeypatch.setattr(host_overhead, "DECODERS", ["greedy", "ouroboros"])
    for name, value in (("CONTEXTS", [64]), ("TOKENS", 20), ("REPEATS", 1), ("BATCH", ("flat", 2))):
        monkeypatch.setattr(host_overhead, name, value)
    host_overhead.host_overhead()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    named = [(row["decoder"], row["sequences"]) for row in rows]
    assert named == [("greedy", 1), ("ouroboros", 1), ("greedy", 2), ("ouroboros", 2)]
    assert all(row["ms_per_step"] > 0 for row in rows)
