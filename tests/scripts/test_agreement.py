"""What drafts are worth, from a recording to tables and plots."""

import json
import random

import agreement
import pytest

from ouroboros.bench.replay.draft_errors import DraftErrorModel


@pytest.fixture
def recording(tmp_path):
    """Conversations of two categories, as JSONL."""
    draw, rows = random.Random(0), []
    for number in range(8):
        words = [draw.choice(["one ", "two ", "three ", "four "]) for _ in range(12)]
        turn = {"prompt": "".join(words), "completion": "".join(words[3:] + words[:6])}
        rows.append({"id": number, "category": "ab"[number % 2], "turns": [turn, turn]})
    path = tmp_path / "turns.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_recording_is_studied_by_group(recording, tmp_path, monkeypatch):
    monkeypatch.setattr(agreement, "DECODERS", ("greedy", "speculative", "prompt_lookup"))
    monkeypatch.setattr(agreement, "SPACES", {"speculative": {"gamma": [1, 9]}})
    monkeypatch.setattr(agreement, "RATIOS", (0.01, 3.0))
    given = [str(recording), "--out", str(tmp_path / "out"), "--agreement", "0.6", "0.9"]
    agreement.main([*given, "--costs", "flat", "--max-new", "40"])
    kept = json.loads((tmp_path / "out" / "agreement.json").read_text())
    rows = kept["rows"]
    assert {row["group"] for row in rows} == {"a", "b", "all"}
    assert {row["prompts"] for row in rows} == {3, 6}, "one in three of four chooses settings"
    value = {
        (r["decoder"], r["agreement"], r["group"], r["ratio"]): r["speedup"]["value"] for r in rows
    }
    assert value["speculative", 0.9, "all", 0.01] > value["speculative", 0.6, "all", 0.01]
    gammas = {ratio: {r["settings"].get("gamma", 7) for r in rows if r["ratio"] == ratio
                      and r["decoder"] == "speculative"} for ratio in (0.01, 3.0)}  # fmt: skip
    assert gammas[3.0] == {1} and min(gammas[0.01]) >= 7, "a dear draft drafts little"
    for part in ("turns.jsonl", "12 recorded", "simulated at agreement 0.6, 0.9", "tokenizer"):
        assert part in kept["title"]
    assert kept["provenance"]["versions"]["torch"] and kept["config"]["recording"] == "turns.jsonl"
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"agreement.md", "agreement_flat.png", "agreement_flat.svg"} <= made


def test_a_real_tokenizer():
    pytest.importorskip("mistral_common")
    pytest.importorskip("sentencepiece")
    found = agreement.sentence_pieces()
    ids = found("def add(a, b):\n    return a + b").input_ids
    assert ids[0] == 1 and found.decode(ids[1:]) == "def add(a, b):\n    return a + b"
    assert len(found.get_vocab()) == 32_000 and "32,000" in agreement.NAME
    assert found("a", add_special_tokens=False).input_ids == found("a").input_ids[1:]


def test_the_shipped_draft_errors_are_of_the_reference_pair():
    assert DraftErrorModel.load().source == "ranks and confidences of the reference pair"
