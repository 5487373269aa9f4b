"""GSM8K (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168): grade-school word problems."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import ClassVar

from ouroboros.bench.tasks.answers import answer_of
from ouroboros.bench.tasks.dataset import EXAMPLES, DatasetTask
from ouroboros.bench.tasks.task import Example

WORKED = EXAMPLES / "gsm8k_worked.jsonl"
"""Question, chain of thought and answer: the worked examples of Wei et al. 2022, table 20
(https://arxiv.org/abs/2201.11903)."""
_SIGN = r"(?:(?<![\d)])-[$€£¥]?|[$€£¥]-?)?"  # in "20-15" and "(4)-1" the minus is not a sign
_WHOLE = r"(?:\d{1,3}(?:[,' ]\d{3})+(?!\d)|\d+)"
_NUMBER = re.compile(
    rf"{_SIGN}(?:(?:\d+ )?\d+ ?/ ?0*[1-9]\d*(?!\d|\.\d)"  # 3/4 or 1 1/2
    rf"|{_WHOLE}(?:\.\d+)?(?:e[+-]?\d\d?(?!\w))?|\.\d+)",
    re.IGNORECASE,
)
_HASHES = re.compile(
    rf"####(?:[^\w.-]|(?:boxed|text|math)\w*\{{)*((?:- *)?{_NUMBER.pattern})"
    r"(?!\d|[.,]\d|[.):][ \t]+\S)",  # no heading such as "#### 1. Cost"
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\f?box(?:ed)? *\{((?:[^{}]|\{[^{}]*\})*)")
_ANSWER = re.compile(
    r"(?<!to )(?<!/)\banswer\b(?:[^.\n\d]{0,60}?\bis\b|[*_ ]*[:=>\n])[\s:*_$(]*", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_NOT = re.compile(rf"\bnot\W+(?:[a-z]+\W+){{0,3}}{_NUMBER.pattern}", re.IGNORECASE)
_TYPOGRAPHY = str.maketrans(
    {"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{RIGHT SINGLE QUOTATION MARK}": "'"}
    | {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
)
_NOTATION = (
    (r"\{,\}", ","),  # 1{,}200
    (r"\\[,!;: ]|\\(?=[$%])", ""),  # 1\,200 and \$5
    (r"(?<=\d) *(?=\\[dtc]?frac)", " "),
    (r"\\[dtc]?frac *\{([^{}]*)\} *\{([^{}]*)\}", r"\1/\2"),
    (r"(?<=\d) *(?:\*|x|\xd7|\\times|\\cdot) *10 *\^ *(?:\{([+-]?\d+)\}|([+-]?\d+))", r"e\1\2"),
    (r"\^ *(?:\{-?\d+\}|-?\d+)", ""),  # the exponent of a unit
    (r"[^\S\n]", " "),
)
"""Patterns of LaTeX and other notations, and their replacements, in this order."""


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


def final_number(text: str) -> Fraction | None:
    """Return the number that a text gives as its answer, or None if it contains no number.

    Takes the number after the first `####` (unless in a heading such as "#### 1. Cost"). If there
    is none, takes the number in the last `\\boxed{}`, else the first number in the sentence after
    the last "answer is" or "answer:", else the last number of the text; of an equation, the number
    after its last equals sign, and no number after "not". Reads thousands separators, fractions,
    LaTeX and scientific notation, and ignores units, currencies and percent signs.

    >>> final_number("If the answer is 3 a day, 400 x 3 = 1200. The answer is 400 x 3 = $1,200.")
    Fraction(1200, 1)
    """
    text = text.translate(_TYPOGRAPHY)
    for pattern, replacement in _NOTATION:
        text = re.sub(pattern, replacement, text)
    if hashes := _HASHES.search(text):
        return value(hashes[1])
    spans = [_SENTENCE_END.split(text[m.end() :], maxsplit=1)[0] for m in _ANSWER.finditer(text)]
    spans += [box[1] for box in _BOXED.finditer(text)]
    for span in reversed(spans):
        span = _NOT.sub("", span)
        for part in (span.rpartition("=")[2], span):
            if found := re.match(rf" *- *{_NUMBER.pattern}", part, re.I) or _NUMBER.search(part):
                return value(found[0])
    numbers = _NUMBER.findall(text)
    return value(numbers[-1]) if numbers else None


def value(number: str) -> Fraction:
    """Return the value of a number as `_NUMBER` matches it.

    >>> value("-1 1/2"), value("$1,200.50")
    (Fraction(-3, 2), Fraction(2401, 2))
    """
    text = re.sub(r"^[-$€£¥ ]+|[,']|(?<=/) | (?=/)", "", number)
    parts = text.split() if "/" in text else [text.replace(" ", "")]
    size = sum(map(Fraction, parts), Fraction())
    return -size if "-" in number[: number.index(text[0])] else size
