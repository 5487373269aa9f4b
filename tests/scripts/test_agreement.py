"""The agreement study, from a recording to tables and plots."""

import json
import random
from dataclasses import asdict

import agreement
import pytest
import torch
from bench_models import repeating_text
from draft_errors import measured_errors

from ouroboros.bench.replay.recording import RecordedRuns
from ouroboros.bench.replay.scripted import ScriptedModel
from ouroboros.bench.replay.simulated_draft import DraftErrorModel, SimulatedDraft
from ouroboros.costs import Costs, Surface


def test_a_recording_is_studied_by_group(tmp_path, monkeypatch):
    draw, turns = random.Random(0), []
    for number in range(8):  # conversations of two categories
        words = [draw.choice(["one ", "two ", "three ", "four "]) for _ in range(12)]
        turn = {"prompt": "".join(words), "completion": "".join(words[3:] + words[:6])}
        turns.append({"id": number, "category": "ab"[number % 2], "turns": [turn, turn]})
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in turns))
    monkeypatch.setattr(agreement, "DECODERS", ("speculative", "prompt_lookup"))
    monkeypatch.setattr(agreement, "SPACES", {"speculative": {"gamma": [1, 9]}})
    monkeypatch.setattr(agreement, "RATIOS", (0.01, 3.0))
    monkeypatch.setattr(agreement, "COSTS", ("flat",))
    monkeypatch.setattr(agreement, "AGREEMENTS", (0.6, 0.9))
    given = [str(tmp_path / "turns.jsonl"), "--out", str(tmp_path / "out")]
    agreement.main([*given, "--max-new", "40"])
    kept = json.loads((tmp_path / "out" / "agreement.json").read_text())
    rows = kept["rows"]
    assert {row["group"] for row in rows} == {"a", "b", "all"}
    assert {row["prompts"] for row in rows} == {3, 6}, "one in three of four chooses settings"
    value = {
        (r["decoder"], r["agreement"], r["group"], r["ratio"]): r["speedup"]["value"] for r in rows
    }
    assert value["speculative", 0.9, "all", 0.01] > value["speculative", 0.6, "all", 0.01]
    gammas: dict[float, set] = {0.01: set(), 3.0: set()}
    for row in rows:
        if row["decoder"] == "speculative":
            gammas[row["ratio"]].add(row["settings"].get("gamma", 7))
    assert gammas[3.0] == {1} and min(gammas[0.01]) >= 7, "a dear draft drafts little"
    for part in ("turns.jsonl", "12 recorded", "simulated at agreement 0.6, 0.9", "tokenizer"):
        assert part in kept["title"]
    assert kept["provenance"]["versions"]["torch"] and kept["config"]["recording"] == "turns.jsonl"
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"agreement.md", "agreement_flat.png"} <= made


def test_a_real_tokenizer():
    pytest.importorskip("mistral_common")
    pytest.importorskip("sentencepiece")
    found = agreement.sentence_pieces()
    text = "def add(a, b):\n    return a + b"
    ids = found(text).input_ids
    assert ids[0] == 1 and ids[1:] == found(text, add_special_tokens=False).input_ids
    assert 5 < len(ids) < len(text) and max(ids) < 32_000


@pytest.mark.slow
def test_a_simulated_draft_measured_like_a_model_gives_back_its_errors(tmp_path):
    recorded = [repeating_text(seed) for seed in range(12)]
    draft = SimulatedDraft(0.7, RecordedRuns(recorded, vocab_size=400))

    class Target(ScriptedModel):
        """Says the recorded text."""

        def score(self, sequence, tokens, tree):
            run = next(r for r in recorded if r.prompt == tuple(tokens[: len(r.prompt)]))
            draft.follow(run.tokens)
            return torch.nn.functional.one_hot(torch.tensor([run.tokens[len(tokens)]]), 400).float()

    prompts = [run.prompt for run in recorded]
    found = measured_errors(Target(), draft, prompts, max_new=480, about={"pair": "x"})
    assert abs(found.about["agreement"] - 0.7) < 0.03 and found.about["places"] == 12 * 480
    for rank, share in draft.errors.shares.items():
        assert abs(found.shares[rank] - share) < 0.05
    assert 0.7 < found.odds / draft.errors.odds < 1.5
    path = tmp_path / "one.json"
    path.write_text(json.dumps(asdict(found)))
    assert DraftErrorModel.load(path) == found
    with pytest.raises(ValueError, match="too few positions"):
        measured_errors(Target(), draft, prompts[:1], max_new=1, about={})


def test_renumbered_texts_are_the_same_texts():
    recorded = RecordedRuns([repeating_text(seed) for seed in range(3)], vocab_size=400)
    made = agreement.renumbered(recorded)
    assert made.vocab_size < 400 + 64
    for old, new in zip(recorded.runs, made.runs, strict=True):
        firsts = [[run.tokens.index(token) for token in run.tokens] for run in (old, new)]
        assert firsts[0] == firsts[1]
        assert (len(new.prompt), new.example) == (len(old.prompt), old.example)


def test_the_draft_is_scaled_and_nothing_else():
    surfaces = (
        Surface({c: {n: ms * c / 256 for n, ms in own.items()} for c in (256, 1024)})
        for own in ({1: 8, 4: 12}, {1: 2, 4: 3})
    )
    costs = Costs(*surfaces, {"": 1.0}, 50.0)
    found = agreement.with_ratio(costs, 0.3)
    assert found.draft is not None and not found.host_ms and not found.prefill_ms
    one, four = (found.target.call_ms(n, 9000) for n in (1, 4))
    assert four == pytest.approx(1.5 * one) == pytest.approx(costs.target.call_ms(4, 512))
    assert found.draft.call_ms(1, 9000) == pytest.approx(0.3 * one)
    assert found.draft.call_ms(4, 9000) == pytest.approx(0.45 * one)
