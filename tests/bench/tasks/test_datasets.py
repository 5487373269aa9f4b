"""The tasks with data files: rows, prompt templates and scores."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from ouroboros.bench.tasks.cnndm import CNNDM
from ouroboros.bench.tasks.gsm8k import GSM8K, final_number
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.bench.tasks.mbpp import MBPP
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.bench.tasks.specbench import SpecBench
from ouroboros.bench.tasks.wmt16 import WMT16

HUB = {"gsm8k": GSM8K, "mbpp": MBPP, "cnndm": CNNDM, "wmt16": WMT16}


def written(path: Path, rows: list[dict]) -> str:
    text = json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows))
    path.write_text(text)
    return str(path)


def problem(task_id: int, **changes) -> dict:
    text = f"Write a function that returns {task_id}."
    tests = [f"assert f() == {task_id}", "assert f()"]
    row = {"text": text, "code": f"def f():\r\n\treturn {task_id}", "task_id": task_id}
    return {**row, "test_setup_code": "", "test_list": tests, **changes}


@pytest.mark.parametrize("task", HUB.values())
def test_without_path_the_hub_is_asked_and_a_failure_is_one_line(task, monkeypatch):
    def offline(name, *_, split, revision):
        assert revision == "abc123" and name in made.version and revision in made.version
        raise ConnectionError("no route\nto host")

    with pytest.raises(ValueError, match=r"task.revision=abc123, but task=\w+ has a path"):
        task(revision="abc123", path="examples")
    made = task(revision="abc123")
    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(ValueError, match=r"from the hub \(ConnectionError\).*task\.path") as caught:
        made.load()
    assert "\n" not in str(caught.value)
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: [{"question": 1}])
    with pytest.raises(ValueError, match=rf"{made.hub[0]}, row 0: its field "):
        made.load()


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        (GSM8K, {"quest": "?"}, '"question" must be non-empty text; it has quest'),
        (GSM8K, {"question": "", "answer": "#### 1"}, '"question" must be non-empty text'),
        (CNNDM, {"article": "a", "highlights": "b"}, '"id"'),
        (WMT16, {"translation": {"de": "ja"}}, r'"translation.en"'),
        (WMT16, {"translation": "ja"}, r'"translation.de"'),
        (MBPP, problem(511) | {"task_id": "511"}, '"task_id" must be a whole number'),
        (MBPP, problem(511, test_list=[1]), '"test_list" must be a list of text'),
        (SpecBench, {"question_id": 1, "category": "qa"}, '"turns"'),
        (Prompts, {"prompt": 3}, '"prompt" must be non-empty text'),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_its_line(tmp_path, task, row, says):
    good = task(path="examples").file.read_text().splitlines()[0]
    path = tmp_path / "rows.jsonl"
    path.write_text(good + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=f"rows.jsonl, line 2: its field {says}"):
        task(path=str(path)).load()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rows.json", b'{\n"rows": []}', r"rows\.json, line 1: not JSON: give an object per line"),
        ("rows.json", b'["a"]', r"rows\.json, row 1: not a JSON object"),
        ("rows.json", b"[{]", r"rows\.json: not JSON"),
        ("rows.jsonl.gz", b"{}", "cannot read .*rows.jsonl.gz .*: give a file of UTF-8 text"),
        ("rows.parquet", b"{}", "give a Parquet file"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        GSM8K(path=str(path)).load()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### -1,234.50\n\nQ: more? The answer is 4.", "-1234.5"),
        ("#### 1. Cost\n5 x 3 = 15\n#### 12) Sum\n15 + 3 = 18\n#### 18", "18"),
        ("#### 1: Cost\n5 x 3 = 15. The answer is 15.", "15"),
        ("The answer is: **18** apples, not 3", "18"),
        (r"so \boxed{1{,}200}.", "1200"),
        ("1,2", "2"),
        ("10,0000", "0"),
        ("The answer is 5 * 4 = 20.", "20"),
        ("If the answer is 12 per day, 12 x 7 = 84. The answer is 84.", "84"),
        ("The answer is 84. I hope that this answer is clear.", "84"),
        (r"\boxed{5}, no: \boxed{6}", "6"),
        ("first 5, then 20-15", "15"),
        ("(20)-15", "15"),
        ("The answer is \N{MINUS SIGN}3.", "-3"),
        ("none", None),
        ("#### **$18.00**\n2 steps", "18"),
        (r"#### \boxed{\text{18}}", "18"),
        ("#### 1 200", "1200"),
        ("#### 1\N{NARROW NO-BREAK SPACE}200 km", "1200"),
        ("#### 1'200'000", "1200000"),
        ("#### - 5", "-5"),
        ("#### -$5", "-5"),
        ("#### 50%", "50"),
        ("#### 2.5e3", "2500"),
        ("#### 9/12.", "3/4"),
        ("#### 1 1/2 cups", "3/2"),
        ("#### 18/0", "18"),
        (r"\boxed{1\,200}", "1200"),
        (r"\boxed{1,\!200}.", "1200"),
        (r"\boxed{-\frac{1}{4}}", "-1/4"),
        (r"\boxed{1\frac{1}{4}}", "5/4"),
        (r"\boxed{x = -\$5}", "-5"),
        (r"\boxed{18\text{ m}^2} as 9 = 9", "18"),
        (r"\boxed{18}. My answer: it has 2 steps", "18"),
        (r"3 \times 10^{4} km", "30000"),
        (r"\boxed{3\cdot10^4} as 9 = 9", "30000"),
        ("1.2 x 10^3", "1200"),
        ("18 m^2", "18"),
        ("The answer is - 5", "-5"),
        ("The answer is not 4 but 5", "5"),
        ("The answer isn't 4. It is 5.", "5"),
        ("The answer to it is: 7\nin 2 steps", "7"),
        ("**Answer:** 7\nin 2 steps", "7"),
        ("## Final answer\n\n$7$\nin 2 steps", "7"),
        ("<answer>7</answer> in 2 steps", "7"),
        ("To answer this: 5 each. 3 x 5 = 15", "15"),
        ("a day - 5 hours", "5"),
    ],
)
def test_final_numbers(text, number):
    assert final_number(text) == (None if number is None else Fraction(number))


AGAIN = "\nQuestion: How many are left?\n#### 19"


@pytest.mark.parametrize(
    ("template", "completion", "score"),
    [
        ("plain", " 24 - 5 = 19.\nQuestion: 2 + 2? 4", 1.0),
        ("plain", " 24 - 5 = 18. The answer is 18.", 0.0),
        ("plain", " I do not know", 0.0),
        ("plain", "<think>#### 5 or so?</think>\n#### 19", 1.0),
        ("plain", "<think>So it is 19. But", 0.0),
        ("plain", AGAIN, 0.0),
        ("paper-yi", AGAIN, 0.0),
        ("chat", AGAIN, 1.0),
    ],
)
def test_gsm8k_scores_the_final_number_before_the_next_question(template, completion, score):
    task = GSM8K(path="examples", template=template)
    example = next(e for e in task.load() if e.data["answer"].endswith("#### 19"))
    assert task.score(example, completion) == {"exact_match": score}
    if template != "chat":
        assert example.prompt.count("The answer") == 8
        assert example.prompt.endswith("\nAnswer:" if template == "plain" else "\nA:")


@pytest.mark.parametrize("task", [*HUB.values(), HumanEval, SpecBench, Prompts])
def test_a_chat_prompt_is_a_users_turn_without_stop_strings(task):
    plain, chat = task(path="examples"), task(path="examples", template="chat")
    example = chat.load()[0]
    assert example.messages == ({"role": "user", "content": example.prompt},)
    assert chat.stop == () and chat.max_new == 256 >= plain.max_new
    given = {"enable_thinking": False, "date_string": None}
    made = task(path="examples", template="chat", template_args=given)
    assert made.template_args == {"enable_thinking": False}
    with pytest.raises(ValueError, match=r"'enable_thinking': False.*task\.template=plain"):
        task(path="examples", template_args=given)


def test_mbpp_splits_and_worked_examples(tmp_path):
    ids = [1, 2, 3, 4, 11, 510, 511, 600, 601]
    path = written(tmp_path / "mbpp.jsonl", [problem(n) for n in ids])
    assert [e.id for e in MBPP(path=path).load()] == ["mbpp/511", "mbpp/600"]
    assert [e.id for e in MBPP(path=path, split="test").load()] == ["mbpp/11", "mbpp/510"]
    with pytest.raises(ValueError, match=r"task\.split 'dev'"):
        MBPP(path=path, split="dev")
    yi = MBPP(path=path, template="paper-yi").load()[0].prompt
    assert yi.count("[BEGIN]\ndef f():\r\n\treturn") == 3
    assert yi.endswith("'assert f()']\n[BEGIN]\n")
    plain = MBPP(path=path).load()[0].prompt
    assert "[BEGIN]\ndef f():\n    return 3\n[DONE]\nYou are an expert" in plain
    deepseek = MBPP(path=path, template="paper-deepseek").load()[0].prompt
    assert deepseek.count(">>> Code:\n```python\n") == 3 and "- Example 2:\n>>> Problem" in deepseek
    assert deepseek.endswith("assert f()\n\n### Response:\n")
    few = written(tmp_path / "few.jsonl", [problem(2), problem(511)])
    with pytest.raises(ValueError, match="template=plain needs 3 worked examples"):
        MBPP(path=few).load()
    assert len(MBPP(path=few, template="chat").load()) == 1


SANITIZED = {
    "prompt": "Return 511.",
    "code": "def f():\n    return 511",
    "task_id": 511,
    "test_imports": ["import math"],
    "test_list": ["assert f() == math.floor(511.5)"],
}


@pytest.mark.parametrize(
    "row",
    [problem(511, test_setup_code="k = 511", test_list=["assert f() == k"]), SANITIZED],
    ids=["whole", "sanitized"],
)
def test_mbpp_runs_setup_and_tests(tmp_path, row):
    path = written(tmp_path / "a.json", [row])
    task = MBPP(path=path, template="chat", execute_code=True)
    example = task.load()[0]
    assert example.prompt.startswith(row.get("prompt") or row["text"])
    for answer, passed in (("Sure:\n```python\ndef f(): return 511\n```", 1), ("def f(): pass", 0)):
        assert task.score(example, answer)["passed"] == passed
    assert MBPP(path="examples").score(example, "") == {}


def test_cnndm_scores_rouge_before_the_stop_string():
    task = CNNDM(path="examples")
    example = task.load()[0]
    assert example.prompt.endswith("the first to cross.\nSummary:")
    scores = task.score(example, " " + str(example.data["highlights"]) + "\n\nDocument: next")
    assert scores == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0, "rougeLsum": 1.0}
    assert task.score(example, "")["rougeL"] == 0.0
    swapped = replace(example, data={"highlights": "The cat sat down.\nA dog ran."})
    scores = task.score(swapped, "A dog ran.\nThe cat sat down.")
    assert scores["rougeLsum"] == 1.0 > scores["rougeL"]
    paper = CNNDM(path="examples", template="paper-llama2").load()[0].prompt
    assert paper.startswith("[INST] Please summarize") and paper.endswith("  Summary: [/INST]")
    chat = CNNDM(path="examples", template="chat").load()[0].prompt
    assert f"[INST] {chat}[/INST]" == paper


def test_wmt16_scores_sentences_and_the_corpus():
    task = WMT16(path="examples")
    examples = task.load()
    pairs = [(e, f" {e.data['en']}\nGerman:") for e in examples]
    assert task.score(*pairs[0]) == pytest.approx({"sentence_bleu": 100, "sentence_chrf": 100})
    assert task.corpus_scores(pairs) == pytest.approx({"bleu": 100, "chrf": 100})
    worse = [*pairs[:-1], (examples[-1], "Nothing of it")]
    assert 50 < task.corpus_scores(worse)["bleu"] < 100
    assert task.score(*worse[-1])["sentence_bleu"] < 10
