"""`ouroboros agreement` end to end: tables, plots, titles, a measured draft, and refusals."""

import json
import random

import pytest
from composing import composed
from ouroboros.bench.replay.imitated_draft import ImitatedDraft
from ouroboros.bench.replay.likeness import DraftErrorModel

from ouroboros.bench.replay.sentence_pieces import NAME, sentence_pieces
from ouroboros.cli import CONF
from ouroboros.decode import DrafterCapabilities
from ouroboros.decoders import decoder_factories

FAST = ["threads=1", "agreement=[0.6,0.9]", "ratios=[0.2]", "max_new=40"]
COSTS = ["costs=[flat]"]


@pytest.fixture
def study(call):
    """Return exit code, document and stderr."""

    def run(*overrides: str) -> tuple[int, dict, str]:
        code, out, err = call("agreement", *overrides)
        lines = out.splitlines()
        return code, json.loads(lines[-1]) if lines else {}, err

    return run


@pytest.fixture
def recording(saved_pair):
    """Conversations of two categories."""
    draw, rows = random.Random(0), []
    for number in range(8):
        words = [draw.choice(["one ", "two ", "three ", "four "]) for _ in range(12)]
        turn = {"prompt": "".join(words), "completion": "".join(words[3:] + words[:6])}
        rows.append({"id": number, "category": "ab"[number % 2], "turns": [turn, turn]})
    path = saved_pair / "turns.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_recording_is_studied_by_group(study, recording, saved_pair):
    given = [f"recording={recording}", "groups={letters: [a]}", "results_dir=out"]
    code, document, err = study(*FAST, *COSTS, *given, "rates=null", "search=null", *DECODERS)
    assert code == 0, err
    rows = document["rows"]
    assert {row["group"] for row in rows} == {"letters", "b", "all"}
    assert {(row["decoder"], row["agreement"]) for row in rows} == {
        ("prompt_lookup", None),
        *((name, share) for name in ("speculative", "ouroboros") for share in (0.6, 0.9)),
    }
    assert {row["prompts"] for row in rows} == {3, 6}  # one in three of four chooses settings
    value = {(r["decoder"], r["agreement"], r["group"]): r["speedup"]["value"] for r in rows}
    assert value["speculative", 0.9, "all"] > value["speculative", 0.6, "all"]
    for part in (
        "turns.jsonl",
        "12 recorded",
        "imitated at agreement 0.6, 0.9",
        "pair's tokenizer",
    ):
        assert part in document["title"]
    made = {path.name for path in (saved_pair / "out").iterdir()}
    assert {"agreement.json", "agreement.md", "agreement_flat.png"} <= made
    kept = json.loads((saved_pair / "out" / "agreement.json").read_text())
    assert kept["rows"] == document["rows"] and kept["provenance"]["versions"]["torch"]
    assert kept["config"]["recording"] == "turns.jsonl"
    code, _, err = study(*FAST, *given)
    assert code == 2 and "is not empty" in err


DECODERS = [
    "decoder=[greedy,speculative,prompt_lookup,ouroboros]",
    "+decoder.ouroboros.recycle=false",
]


@pytest.mark.slow
def test_settings_are_chosen_on_other_prompts(study, recording):
    search = "search={speculative: {gamma: [1, 9]}}"
    given = [f"recording={recording}", "decoder=[greedy,speculative]", search]
    chosen = []
    for ratio in (0.01, 3.0):
        code, document, err = study(*FAST, *COSTS, *given, f"ratios=[{ratio}]", "rates=null")
        assert code == 0, err
        chosen.append({row["settings"].get("gamma", 7) for row in document["rows"]})
    assert min(chosen[0]) >= 7 and chosen[1] == {1}


def test_what_is_not_recorded_is_imitated_by_rates_or_refused(study, recording):
    given = [f"recording={recording}", "decoder=[greedy,lookahead]", "search=null"]
    given += ["decoder.lookahead.window_size=3"]
    code, document, err = study(*FAST, *COSTS, *given)
    assert code == 0 and "predictions off the text imitated" in document["title"], err
    code, _, err = study(*FAST, *COSTS, *given, "rates=null")
    assert code == 2 and "Lookahead learns from" in err


def test_a_pair_is_measured(study, saved_pair):
    texts = f"task.path={CONF}/task/development.jsonl"
    code, document, err = study("measure=like.json", "model.dtype=float32", texts)
    assert code == 0, err
    found = DraftErrorModel.load(saved_pair / "like.json")
    assert found.about["places"] == document["places"] > 100
    assert found.source.endswith("the hf pair")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "give recording="),
        (["recording=x.jsonl", "held_out=1"], "held_out=1 leaves no prompt"),
        (["recording=x.jsonl", "agreement=[]"], "one value each at least"),
        (["recording=x.jsonl", "rates=3"], "rates=3: give two shares"),
    ],
)
def test_mistakes_are_one_line(study, saved_pair, overrides, says):
    (saved_pair / "x.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    code, _, err = study(*FAST, *COSTS, *overrides)
    assert code == 2 and says in err


def test_without_its_packages_a_real_tokenizer_is_refused(study, saved_pair, monkeypatch):
    monkeypatch.setattr("ouroboros.bench.replay.sentence_pieces.find_spec", lambda name: None)
    (saved_pair / "x.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    code, _, err = study(*FAST, *COSTS, "recording=x.jsonl", "tokenizer=sentencepiece")
    assert code == 2 and "[recordings]" in err


@pytest.mark.skipif(sentence_pieces() is None, reason="mistral-common is not installed")
def test_a_real_tokenizer():
    found = sentence_pieces()
    ids = found("def add(a, b):\n    return a + b").input_ids
    assert ids[0] == 1 and found.decode(ids[1:]) == "def add(a, b):\n    return a + b"
    assert len(found.get_vocab()) == 32_000 and "32,000" in NAME
    assert found("a", add_special_tokens=False).input_ids == ids[:0] + found("a").input_ids[1:]


def test_on_real_text_nothing_reads_what_a_recording_does_not_hold():
    config = composed(name="real_text")
    assert config["rates"] is None and config["tokenizer"] == "sentencepiece"
    draft = ImitatedDraft(0.8, [], vocab_size=100)
    made = decoder_factories(config["decoder"], draft)
    assert {"speculative", "prompt_lookup", "ouroboros", "ouroboros_text"} <= set(made)
    assert not any(DrafterCapabilities.of(make()).reads_rejected for make in made.values())
