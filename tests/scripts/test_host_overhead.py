"""Models that compute nothing: the scripted text, whatever the drafter, and a known host time."""

import json
import random

import host_overhead
import pytest
from host_overhead import Script, draft_script, host_time
from tiny import DRAFTERS

from ouroboros.bench.replay.scripted import ScriptedModel

DRAW = random.Random(5)
TEXT = [DRAW.randrange(20) for _ in range(400)]


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_follows_the_scripts(name):
    draft = ScriptedModel()
    scripts = [(Script(TEXT[i:]), draft_script(TEXT[i:], 0.8)) for i in range(3)]
    seconds, rows = host_time(lambda: DRAFTERS[name](draft), scripts, prompt=50, max_new=80)
    assert seconds > 0 and all(script.spent_s > 0 for script, _ in scripts)
    assert [row.trace.tokens for row in rows] == [TEXT[i : i + 130] for i in range(3)]


def test_the_script_prints_a_table_and_one_document(capsys, monkeypatch):
    monkeypatch.setattr(host_overhead, "DECODERS", ["greedy", "ouroboros"])
    for name, value in (("CONTEXTS", [64]), ("TOKENS", 20), ("REPEATS", 1), ("BATCH", ("flat", 2))):
        monkeypatch.setattr(host_overhead, name, value)
    host_overhead.host_overhead()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    named = [(row["decoder"], row["sequences"]) for row in rows]
    assert named == [("greedy", 1), ("ouroboros", 1), ("greedy", 2), ("ouroboros", 2)]
