"""`ouroboros audit` on files of completions that another engine made."""

import json

import pytest
import torch
from bench_models import tiny_pair


@pytest.fixture(scope="module")
def completions():
    """Rows of transformers' own greedy generation by the target of the tiny pair."""
    model = tiny_pair()[0]
    rows = []
    for number, text in enumerate(("ab", "cab", "a")):
        prompt = model.tokenizer(text)["input_ids"]
        whole = model.model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)
        new = whole[0, len(prompt) :].tolist()
        rows.append({"id": number, "prompt": text, "prompt_token_ids": prompt, "token_ids": new})
    return rows


@pytest.fixture
def audited(call, saved_pair):
    """Write files of rows, audit them in float32; return exit code, the document, stderr."""

    def run(**files):
        names = [f"{name}.jsonl" for name in files]
        for name, rows in zip(names, files.values(), strict=True):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (saved_pair / name).write_text(text)
        own = [f"model.target={saved_pair / 'target'}", "model=hf", "model.dtype=float32"]
        code, out, err = call("audit", str(saved_pair / names[0]), *names[1:], *own, pair=False)
        return code, json.loads(out.splitlines()[-1]) if out else None, err

    return run


def test_completions_of_any_engine_are_judged(audited, completions, saved_pair, monkeypatch):
    monkeypatch.chdir(saved_pair)
    wrong = [dict(row) for row in completions]
    last = wrong[1]["token_ids"][-1]
    wrong[1]["token_ids"] = [*wrong[1]["token_ids"][:-1], (last + 1) % 13]
    code, found, _ = audited(plain=completions, same=completions, wrong=wrong, short=wrong[:1])
    assert code == 1 and found["bugs"] == 3
    assert found["verdicts"]["plain"] == found["verdicts"]["same"] == {"identical": 3}
    assert found["verdicts"]["wrong"] == {"identical": 2, "BUG": 1}
    text = (saved_pair / "short.audit" / "audit.md").read_text()
    assert "greedy-equivalent" in text.splitlines()[2] and "missing" in text


def test_a_file_alone_is_held_against_the_model(audited, completions):
    assert audited(plain=completions)[0] == 0
    shifted = [{**row, "token_ids": [5, *row["token_ids"][1:]]} for row in completions]
    assert audited(plain=shifted)[1]["bugs"] > 0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a"}, "line 1: no 'text'; give prompt"),
        ({"prompt_token_ids": [10**6], "token_ids": [1]}, "ids that the model does not know"),
        ({"prompt": "other", "id": 0, "token_ids": [1]}, "no such prompt '0'; pair lines by id"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(
    audited, completions, saved_pair, monkeypatch, row, words
):
    monkeypatch.chdir(saved_pair)
    code, _, err = audited(plain=completions, other=[row])
    assert code != 0 and words in err.splitlines()[-1]
