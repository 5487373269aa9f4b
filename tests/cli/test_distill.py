"""`ouroboros distill`: a draft from a target in one command, its report, and its errors."""

from __future__ import annotations

import json

import pytest
from bench_models import byte_tokenizer, tiny_llama
from transformers import AutoModelForCausalLM

from ouroboros.models import distill as distilling

SMALL = ("layers=1", "head=100", "tokens=300", "max_new=12", "model.dtype=float32", "threads=1")


@pytest.fixture
def run_distill(call, monkeypatch, saved_pair):
    """Call the command on the target, with little text."""
    for name, value in {"WAVE": 16, "HELD_OUT": 4, "OPENING": 4, "BATCH": 512}.items():
        monkeypatch.setattr(distilling, name, value)
    monkeypatch.setattr("ouroboros.cli.distill.PROMPTS", 1)
    monkeypatch.chdir(saved_pair)
    own = f"model.target={saved_pair / 'layers'}", *SMALL
    return lambda *rest: call("distill", *own, *rest, pair=False)


@pytest.fixture(scope="module", autouse=True)
def layers(saved_pair):
    """A target of three layers."""
    tiny_llama(0, layers=3).save_pretrained(saved_pair / "layers")
    byte_tokenizer().save_pretrained(saved_pair / "layers")


def test_a_draft_in_one_command(run_distill, document, tmp_path):
    prompts = tmp_path / "mine.txt"
    prompts.write_text("\n---\n".join(f"def f{n}(x):" for n in range(12)))
    out = tmp_path / "draft"
    code, text, told = run_distill(f"prompts={prompts}", f"out={out}")
    found = json.loads(text.splitlines()[-1])
    assert ("agrees too rarely to help" in told) is (found["trained"]["0.0"] < 0.3)
    assert not code and found["out"] == str(out) and found["layers"] == [2]
    assert set(found["trained"]) == {"0.0", "0.8"} and found["draft_cost"] > 0
    assert set(found["measured_speedup"]) == {"speculative", "ouroboros"}
    assert "agreement before training" in text and "a draft call takes" in text
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "head_ids.json", "tokenizer.json"} <= names and "work" not in names
    card = (out / "README.md").read_text()
    assert "layers [2] of the target" in card and "steps. It scores 100 ids" in card
    assert AutoModelForCausalLM.from_pretrained(out).config.num_hidden_layers == 1
    code, _, told = run_distill(f"out={out}")
    assert code == 2 and f"out={out} has a finished draft: give another folder" in told
    run = ("decoder=[greedy,speculative]", "task=prompts", f"task.path={prompts}", "max_new=8")
    run += (f"model.draft={out}", "task.limit=2", "timing=false")
    assert document("bench", *run)["finished"]


BAD = {
    "minutes=0": "minutes=0.0: give a number above 0",
    "head=0": "head=0: give a whole number, 1 or more",
    "layers=7": "layers=7: the target has 3; give a number from 1 to 2",
    "prompts=nosuch.jsonl": "nosuch.jsonl",
    "prompts=few.txt": "2 different prompts are too few: give 8 or more",
    "model.target=null": "give model.target=<hub id or folder>",
}


@pytest.mark.parametrize("option", BAD)
def test_bad_options_are_told_in_one_line(run_distill, saved_pair, tmp_path, option):
    (saved_pair / "few.txt").write_text("one\n---\ntwo\n")
    code, _, told = run_distill(f"out={tmp_path / 'draft'}", option)
    assert code == 2 and BAD[option] in told and len(told.strip().splitlines()) == 1
