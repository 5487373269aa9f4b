"""Answers in completions: reasoning before them, prose around programs, what follows a function."""

import textwrap

import pytest

from ouroboros.bench.tasks.answers import answer_of, code_of
from ouroboros.bench.tasks.humaneval import HumanEval

STOP = HumanEval().stop
PROMPT = 'def twice(x):\n    """Return 2 * x."""\n'
BODY, WHOLE = "    return 2 * x", "def twice(x):\n    return 2 * x\n"
FENCED, DRAFT = f"```python\n{WHOLE}```", "```python\ndef twice(x):\n    return x\n```"


ANSWERS = {
    "one block": f"Sure:\n\n{FENCED}\n\nIt doubles x.",
    "with a language and a title": FENCED.replace("python", "Python title=a.py"),
    "after a word": f"Sure: {FENCED}",
    "closed in its last line": f"```python\n{WHOLE.strip()}```",
    "not closed": f"Sure:\n```python\n{WHOLE}",
    "cut off in an example": f"```python\n{WHOLE}\nprint(twice(",
    "in a list": "1. So:\n" + textwrap.indent(FENCED, "   ") + "\n2. Run it.",
    "indented in its block": "```python\n" + textwrap.indent(WHOLE, "    ") + "```",
    "a fence in its docstring": f'```\n{PROMPT[:-4]}\n    ```\n    x\n    ```"""\n{BODY}\n```',
    "after a block of use": f"You can call it:\n```python\nprint(twice(1))\n```\n{FENCED}",
    "before a block of tests": f"{FENCED}\n```python\ndef test():\n    assert twice(1) == 3\n```",
    "after a draft": f"{DRAFT}\nThis forgets a factor:\n{FENCED}",
    "after reasoning": f"<think>So:\n{DRAFT}\nNo.</think>\n{FENCED}",
    "tags": f"[PYTHON]\n{WHOLE}[/PYTHON]\n[TESTS]\nassert twice(1) == 3\n[/TESTS]",
    "no block": f"Here it is:\n\nimport math\n\n{WHOLE}\nIt doubles x.",
    "the body in a block": f"```python\n{BODY}\n```",
    "the body": f" \n{BODY}\n\n```python\ntwice(1)\n```",
    "the body and a sentence": f"{BODY}\n\nThis doubles x.",
    "two spaces and prose": f"  Sure!\n{FENCED}",
}
FOLLOWED = {
    "a decorator": "@pytest.mark.slow\ndef test():\n    pass",
    "an assertion": "assert twice(1) == 3",
    "a loop": "for i in range(3):\n    print(twice(i))",
    "an interactive session": ">>> twice(1)",
    "a sentence": "This function doubles x.",
    "a fence": "```\n\nExample:\n```python\nassert False\n```",
}


def works(code: str) -> bool:
    found: dict = {}
    exec(PROMPT + code, found)
    return found["twice"](3) == 6


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_s_program(answer):
    assert works(code_of(answer, STOP, fenced=True, prompt=PROMPT, names={"twice"}))


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("after", FOLLOWED.values(), ids=FOLLOWED)
def test_a_body_ends_before(after, fenced):
    found = code_of(f"{BODY}\n\n{after}", STOP, fenced=fenced, prompt=PROMPT)
    assert found == f"{BODY}\n"


@pytest.mark.parametrize(
    "body",
    [
        '    s = """\ntext at the margin\n"""\n    return len(s) * 0 + 2 * x',
        "    return sum([\nx,\nx])",
        "    y = 2\n#note\n    return y * x",
    ],
)
def test_a_body_goes_on_after_lines_at_the_margin(body):
    assert code_of(body, ["\ndef"], fenced=False, prompt=PROMPT) == body


def test_other_programs_end_at_a_stop_string():
    code = "def f():\n    x()"
    assert code_of(f"{code}\n[DONE]\n1", ["\n[DONE]"], fenced=False) == code


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Bonn.\nQ: b", "Bonn."),
        ("<think>Rome?\nQ: b</think>\nBonn.", "\nBonn."),
        ("Rome?</think>Bonn.", "Bonn."),  # the prompt opened the section
        ("<thinking>a</thinking><reasoning>b</reasoning>Bonn.", "Bonn."),
        ("[THINK]Rome?[/THINK]Bonn.", "Bonn."),
        ("<seed:think>Rome?</seed:think>Bonn.", "Bonn."),
        ("\n<think>Bonn. But", ""),
    ],
)
def test_an_answer_follows_the_reasoning_and_ends_at_a_stop_string(completion, answer):
    assert answer_of(completion, ("\nA:", "\nQ:")) == answer
