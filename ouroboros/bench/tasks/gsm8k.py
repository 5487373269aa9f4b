"""GSM8K (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168): grade-school word problems."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import ClassVar

from ouroboros.bench.tasks.answers import answer_of
from ouroboros.bench.tasks.dataset import EXAMPLES, DatasetTask
from ouroboros.bench.tasks.task import Example

WORKED = EXAMPLES / "gsm8k_worked.jsonl"
"""Question, chain of thought and answer: the worked examples of Wei et al. 2022, table 20
(https://arxiv.org/abs/2201.11903)."""
_NUMBER = r"(?:(?<![\d)])-[$€£]?)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
"""A number; in "20-15" and "(4)-1" the minus is not a sign."""
_HASHES = re.compile(
    rf"####(?:[^\w.-]|(?:boxed|text)\{{)*({_NUMBER})(?!\d|[.,]\d|[.):][ \t]+\S)"
)  # no heading such as "#### 1. Cost"
_BOXED = re.compile(r"\\boxed *\{((?:[^{}]|\{[^{}]*\})*)")
_ANSWER = re.compile(
    r"(?<!to )(?<!/)\banswer\b(?:[^.\n\d]{0,60}?\bis\b|[*_ ]*[:=>\n])[\s:*_$(]*", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_LATEX = re.compile(r"\\(?:[,!;: ]|(?=[$%]))")  # spaces in numbers, escaped signs


class GSM8K(DatasetTask):
    """1319 questions whose answer is a number. MIT licence.

    Scored: exact match of the final number. The hub id is openai/gsm8k; `path` is a JSONL file with
    the same fields, "question" and "answer" (which ends in `#### N`).
    """

    name = "gsm8k"
    licence = "MIT"
    max_new = 256
    hub = ("openai/gsm8k", "main", "test")
    fields: ClassVar = {"question": str, "answer": str}

    def load(self) -> list[Example]:
        """Return an example per question. Raises `ValueError` for an answer without a number."""
        asked = self.prompt.text.partition("{worked}")[2]
        solved = asked + " {reasoning} The answer is {answer}.\n\n"
        shots = map(json.loads, WORKED.read_text("utf-8").splitlines())
        worked = "".join(solved.format(**shot) for shot in shots) if asked else ""
        examples = []
        for index, row in enumerate(self.rows()):
            if final_number(row["answer"]) is None:
                raise ValueError(f'{self.version}, row {index}: its "answer" has no number')
            fields = {"question": row["question"].strip(), "worked": worked}
            examples.append(self.prompt.example(f"gsm8k/{index}", fields, row))
        return examples

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {"exact_match": 1.0 or 0.0}."""
        wanted = final_number(str(example.data["answer"]))
        stop = self.stop or (() if self.prompt.chat else ("\nQ:", "\nQuestion:"))
        return {"exact_match": float(final_number(answer_of(completion, stop)) == wanted)}


def final_number(text: str) -> Decimal | None:
    """Return the number that a text gives as its answer, or None if it contains no number.

    Takes the number after the first `####` (unless in a heading such as "#### 1. Cost"). If there
    is none, takes the number in the last `\\boxed{}`, else the first number in the sentence after
    the last "answer is" or "answer:", else the last number of the text; of an equation, the number
    after its last equals sign. Reads thousands separators, and ignores units and currencies.

    >>> final_number("If the answer is 3 a day, 400 x 3 = 1200. The answer is 400 x 3 = $1,200.")
    Decimal('1200')
    """
    text = _LATEX.sub("", text.replace("{,}", ",").replace("\N{MINUS SIGN}", "-"))
    if hashes := _HASHES.search(text):
        return _value(hashes[1])
    spans = [_SENTENCE_END.split(text[m.end() :], maxsplit=1)[0] for m in _ANSWER.finditer(text)]
    spans += [box[1] for box in _BOXED.finditer(text)]
    for span in reversed(spans):
        for part in (span.rpartition("=")[2], span):
            if found := re.search(_NUMBER, part):
                return _value(found[0])
    numbers = re.findall(_NUMBER, text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Decimal:
    return Decimal(re.sub(r"[^\d.-]", "", number))
