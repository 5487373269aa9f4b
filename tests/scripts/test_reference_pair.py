"""The reference pair's whole training at toy size, and the filters of its data."""

from __future__ import annotations

import json

import corpus
import outputs
import pandas as pd
import polish
import pytest
import train
from loop import Recipe, multiplier, progress
from polish import Polish

from ouroboros import CachedModel, Ouroboros, decode
from ouroboros.decode import RootOnly

BRIEF = "steps=20 batch_tokens=512 length=64 long_length=128 compile=false"
STEPS = {
    "prepare": "stdlib_files=60 vocab=512",
    "target": f"hidden=128 ffn=128 heads=1 layers=2 device=cpu {BRIEF}",
    "polish": "steps=3 batch_tokens=512 length=64 compile=false device=cpu",
    "draft": f"groups=[[0,1]] ffn=192 outputs=8 device=cpu {BRIEF}",
    "export": "out={out} prompts=1",
}


@pytest.mark.slow
def test_the_steps_train_a_tiny_pair_that_decodes_and_is_measured(tmp_path):
    work, out = tmp_path / "work", tmp_path / "pair"
    for step, options in STEPS.items():
        train.main([step, f"work={work}", *options.format(out=out).split()])
    summary = json.loads((work / "target" / "summary.json").read_text())
    assert summary["loss"] < 6.2  # ln 512 = 6.24: it has learned something
    assert summary["step"] == summary["steps"] == 20 and summary["polish"]["step"] == 3
    assert 0 <= summary["polish"]["repeats"] <= 1
    target = CachedModel.from_pretrained(str(out / "target"))
    draft = CachedModel.from_pretrained(str(out / "draft"))
    prompt = target.tokenizer("def mean(values):").input_ids
    for drafter in (Ouroboros(draft), RootOnly()):
        assert decode(target, drafter, prompt, max_new=8).new_tokens
    found = json.loads((out / "evaluation.json").read_text())
    assert 5 < found["loss"]["target"]["module"]["nats_per_token"] < 7
    assert 0 <= found["humaneval"]["0.8"]["agreement"] <= 1
    assert json.loads((out / "manifest.json").read_text())["counts"]["train_tokens"] > 0


def test_a_document_that_shares_13_words_with_a_benchmark_is_dropped(tmp_path):
    words = " ".join(f"w{i}" for i in range(13))
    question = {"question": f"Why {words} so?", "answer": "It is 1.\n#### 1"}
    (tmp_path / "train.jsonl").write_text(json.dumps(question) + "\n")
    texts = [*corpus.math_documents(tmp_path / "train.jsonl")] * 2
    for benchmarks, left in (([], 1), ([f"before {words.upper()}, after"], 0), (["w1 w2"], 1)):
        documents, manifest = corpus.filtered(texts, benchmarks)
        assert len(documents) == left == 1 - manifest["overlapping"]
        assert manifest["duplicates"] == 1


def test_training_holds_no_held_out_code():
    held = pd.DataFrame([("function", "def f():\n    return 1\n")], columns=["kind", "text"])
    rows = [("module", "class A:\n    def f():\n        return 1\n"), ("prose", "Read.")]
    mixed = corpus.mixture(pd.DataFrame(rows, columns=["kind", "text"]), held)
    assert list(mixed["text"]) == ["Read."] * 3, "prose thrice, the module not at all"


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


def test_the_learning_rate_follows_a_budget_of_minutes_or_steps():
    spent = {"steps": 3, "seconds": 45.0}
    recipe = Recipe(minutes=1, warmup_share=0.1, decay_share=0.5)
    assert progress(recipe, **spent) == progress(Polish(minutes=1), **spent) == 0.75
    assert progress(Recipe(minutes=1, steps=12), **spent) == 0.25
    rates = [multiplier(p, recipe) for p in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.5, 0.0])
