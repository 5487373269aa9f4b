"""GSM8K (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168): grade-school word problems."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import ClassVar

from ouroboros.bench.tasks.dataset import EXAMPLES, DatasetTask, before_stop
from ouroboros.bench.tasks.task import Example

WORKED = EXAMPLES / "gsm8k_worked.jsonl"
"""Question, chain of thought and answer: the worked examples of Wei et al. 2022, table 20
(https://arxiv.org/abs/2201.11903)."""
_SIGN = r"(?:(?<![\d)])-\$?|\$-?)?"  # in "20-15" and "(4)-1" the minus is not a sign
_NUMBER = _SIGN + r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_HASHES = re.compile(rf"####\s*({_NUMBER})(?!\d|[.,]\d|[.):][ \t]+\S)")
_ANSWER_IS = re.compile(r"answer is|\\boxed\{", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_MINUS = "\N{MINUS SIGN}"


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
        found = final_number(before_stop(completion, stop))
        return {"exact_match": float(found == wanted)}


def final_number(text: str) -> Decimal | None:
    """Return the number that a text gives as its answer, or None if it contains no number.

    Takes the number after the first `####` (unless in a heading such as "#### 1. Cost"). If there
    is none, takes the first number after the last "answer is" or `\\boxed{` in the same sentence
    (after its last equals sign, if any), else the last number of the text. Ignores dollar signs,
    thousands separators (`,`, LaTeX's `{,}`) and a final period.

    >>> final_number("If the answer is 3 a day, 400 x 3 = 1200. The answer is 400 x 3 = $1,200.")
    Decimal('1200')
    """
    text = text.replace(_MINUS, "-").replace("{,}", ",")
    numbers, hashes = re.findall(_NUMBER, text), _HASHES.search(text)
    if not numbers:
        return None
    found = hashes[1] if hashes else numbers[-1]
    for words in _ANSWER_IS.finditer(text) if not hashes else ():
        sentence = _SENTENCE_END.split(text[words.end() :], maxsplit=1)[0]
        result = re.search(_NUMBER, sentence.rpartition("=")[2]) or re.search(_NUMBER, sentence)
        found = result[0] if result else found
    return Decimal(found.replace("$", "").replace(",", ""))
