"""The reference pair's training, whole, at toy size, and the pieces that keep its data honest."""

from __future__ import annotations

import json

import corpus
import evaluate
import outputs
import polish
import pytest
import train
from loop import Recipe, multiplier, progress
from polish import Polish

from ouroboros import CachedModel, Ouroboros, decode, reference_pair
from ouroboros.decode import RootOnly


@pytest.mark.slow
def test_one_command_trains_a_tiny_pair_that_decodes(tmp_path):
    command = ["tiny", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "pair")]
    args = train.parser().parse_args([*command, "--device", "cpu"])
    args.step(args)
    summary = json.loads((tmp_path / "work" / "target" / "summary.json").read_text())
    assert summary["loss"] < 6.2  # ln 512 = 6.24: it has learned something
    assert summary["polish_steps"] == 2 and summary["step"] == summary["steps"] == 20
    target = CachedModel.from_pretrained(str(tmp_path / "pair" / "target"))
    draft = CachedModel.from_pretrained(str(tmp_path / "pair" / "draft"))
    prompt = target.tokenizer("def mean(values):").input_ids
    drafter = Ouroboros(draft)
    assert decode(target, drafter, prompt, max_new=8).new_tokens
    assert decode(target, RootOnly(), prompt, max_new=8).new_tokens


def test_the_card_says_what_was_measured():
    folder = reference_pair.FOLDER
    manifest, figures = (
        json.loads((folder / name).read_text()) for name in ("manifest.json", "evaluation.json")
    )
    for found in figures["humaneval"].values():
        found.setdefault("prompts", 164)  # the shipped pair's figures are older than this one
    figures = {"by_position": {"0.0": {"0-512": 0.8123}}, "matched_temperature": 0.53} | figures
    names = ("parameters", "inner", "weights_mb", "tokens", "seconds", "polish_steps")
    model = dict.fromkeys((*names, "polish_minutes"), 12345678) | {"shape": "6", "groups": [[0]]}
    told = {"hardware": "two cores", "history": ""}
    text = evaluate.card(manifest=manifest, target=model, draft=model, **told, **figures)
    loss = figures["loss"]["target"]["prose"]["nats_per_token"]
    assert "| parameters | 12,345,678 |" in text and f"| {loss:.3f} |" in text
    assert all(package["name"] in text for package in manifest["packages"])


def test_a_document_that_shares_13_words_with_a_benchmark_is_dropped(tmp_path):
    words = " ".join(f"w{i}" for i in range(13))
    question = {"question": f"Why {words} so?", "answer": "It is 1.\n#### 1"}
    train_split = tmp_path / "train.jsonl"
    train_split.write_text(json.dumps(question) + "\n")
    for forbidden, left in (([], 1), ([f"before {words.upper()}, after"], 0), (["w1 w2"], 1)):
        documents, manifest = corpus.build([], train_split, forbidden, stdlib_limit=0)
        assert len(documents) == left
        assert manifest.overlapping == 1 - left


def test_only_short_documented_functions_are_taken():
    source = (
        "class A:\n"
        "    def kept(self):\n"
        '        """Say."""\n'
        "        return 1\n\n"
        "def bare():\n    return 2\n\n"
        'def only_a_docstring():\n    """Say."""\n'
    )
    assert list(corpus.functions_of(source)) == ['def kept(self):\n    """Say."""\n    return 1\n']
    assert list(corpus.functions_of("def broken(:\n")) == []


@pytest.mark.parametrize(
    ("tokens", "marks"),
    [([], []), ([1, 1, 1], [False, False, True]), ([1, 2, 3, 1, 2], [False] * 4 + [True])],
)
def test_repeats_marks_the_token_that_completes_a_seen_ngram(tokens, marks):
    assert polish.repeats(tokens, n=2) == marks


def test_a_prompt_ends_with_the_docstring():
    text = 'def f(x):\n    """Say."""\n    return """no"""\n'
    assert outputs.function_prompts([text, "x = 1\n"]) == ['def f(x):\n    """Say."""']


def test_a_budget_is_minutes_or_steps():
    spent = {"steps": 3, "seconds": 45.0}
    assert progress(Recipe(minutes=1), **spent) == progress(Polish(minutes=1), **spent) == 0.75
    assert progress(Recipe(minutes=1, steps=12), **spent) == 0.25


def test_the_learning_rate_rises_stays_and_falls():
    recipe = Recipe(minutes=1, warmup_share=0.1, decay_share=0.5)
    rates = [multiplier(p, recipe) for p in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.5, 0.0])
