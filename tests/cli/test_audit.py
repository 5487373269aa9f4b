"""`ouroboros audit` on files of completions that another engine made."""

import json

import pytest
import torch
from bench_models import tiny_pair

from ouroboros.audit.files import audit_files


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
def audited(call, saved_pair, monkeypatch):
    """Write files of rows, audit them in float32; return exit code, the document, stderr."""
    monkeypatch.chdir(saved_pair)

    def run(**files):
        names = [f"{name}.jsonl" for name in files]
        for name, rows in zip(names, files.values(), strict=True):
            gap = "\n" * (name == names[0])  # empty lines are no completions
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" + gap for row in rows)
            (saved_pair / name).write_text(text)
        own = [f"model.target={saved_pair / 'target'}", "model=hf", "model.dtype=float32"]
        code, out, err = call("audit", str(saved_pair / names[0]), *names[1:], *own, pair=False)
        return code, json.loads(out.splitlines()[-1]) if out else None, err

    return run


def test_completions_of_any_engine_are_judged(audited, completions, saved_pair):
    wrong = [dict(row) for row in completions]
    last = wrong[1]["token_ids"][-1]
    wrong[1]["token_ids"] = [*wrong[1]["token_ids"][:-1], (last + 1) % 13]
    code, found, _ = audited(plain=completions, same=completions, wrong=wrong, short=wrong[:1])
    assert code == 1 and found["bugs"] == 3
    assert found["verdicts"]["plain"] == found["verdicts"]["same"] == {"identical": 3}
    assert found["verdicts"]["wrong"] == {"identical": 2, "BUG": 1}
    text = (saved_pair / "short.audit" / "audit.md").read_text()
    heads, _, first, second = (line.split("|") for line in text.splitlines()[2:6])
    column = [head.strip() for head in heads].index("compared with")
    assert first[column].strip() == "the model in float64" and second[column].strip() == "plain"
    assert "greedy-equivalent" in text.splitlines()[2] and "missing" in text


def test_one_file_is_held_against_the_model_and_any_name_and_lines_without_ids_will_do(
    audited, completions
):
    wrong = [{**row, "token_ids": [5, *row["token_ids"][1:]]} for row in completions]
    assert audited(plain=completions)[0] == 0 and audited(plain=wrong)[1]["bugs"] > 0
    code, found, _ = audited(plain=completions, reference=wrong)
    assert code == 1 and found["verdicts"]["reference"]["BUG"] > 0
    rows = [{k: v for k, v in row.items() if k != "id"} for row in completions]
    found = audited(plain=rows, same=rows)[1]
    assert found["verdicts"]["plain"] == found["verdicts"]["same"] == {"identical": 3}


def test_end_tokens_are_judged_where_they_are_known(completions, tmp_path):
    """Token ids may hold the end, texts do not; one too early is a difference like any other."""
    row = completions[0]
    text = row["token_ids"]
    at = next(n for n in range(2, 8) if text[n] not in text[:n])
    eos, early, ended = text[at], [*text[: at - 1], text[at]], text[: at + 1]

    def verdicts(*files, eos=eos):
        paths = [tmp_path / f"{number}.jsonl" for number in range(len(files))]
        for path, ids in zip(paths, files, strict=True):
            path.write_text(json.dumps({**row, "token_ids": ids}))
        (found,) = audit_files(tiny_pair()[0], paths, eos={eos})
        return [one["verdict"] for one in found.findings.values()]

    same = ["identical", "identical"]
    assert verdicts(ended, ended[:-1]) == verdicts(ended[:-1], ended) == same
    assert verdicts(ended, [*ended, eos, eos]) == same
    assert verdicts(early, ended) == ["BUG", "BUG"]
    assert verdicts(ended, early) == ["identical", "BUG"]
    assert verdicts([], ended) == ["BUG", "BUG"]  # greedy decoding does not end at once
    assert verdicts([], []) == ["BUG", "identical"]
    assert verdicts(ended, []) == ["identical", "BUG"]
    assert verdicts([text[0]], [], eos=text[0]) == same
    assert verdicts([], [text[0]], eos=text[0]) == verdicts([], [], eos=text[0]) == same


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a"}, "line 1: no 'text'; give prompt"),
        ({"prompt_token_ids": [10**6], "token_ids": [1]}, "ids beyond the model's vocabulary"),
        ({"prompt": "other", "id": 0, "token_ids": [1]}, "no such prompt '0'; pair lines by id"),
        ({"prompt": "ab", "id": "1", "text": "\u2028"}, "no such prompt '1'"),
        ({"prompt": "ab", "id": 0, "token_ids": [5.0]}, "line 1: a token id is not a whole number"),
        ({"prompt": "ab", "id": 0, "text": "a"}, "line 2: a second completion has id 0"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(audited, completions, row, words):
    again = [row] if "second" not in words else [row, row]
    code, _, err = audited(plain=completions, other=again)
    assert code != 0 and words in err.splitlines()[-1]
