"""GSM8K (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168): grade-school word problems."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import ClassVar

from ouroboros.bench.tasks.completion import before_stop
from ouroboros.bench.tasks.source import HubTask
from ouroboros.bench.tasks.task import Example
from ouroboros.bench.tasks.template import Template

WORKED = (
    (
        "There are 15 trees in the grove. Grove workers will plant trees in the grove today. After "
        "they are done, there will be 21 trees. How many trees did the grove workers plant today?",
        "There are 15 trees originally. Then there were 21 trees after some more were planted. So "
        "there must have been 21 - 15 = 6.",
        "6",
    ),
    (
        "If there are 3 cars in the parking lot and 2 more cars arrive, how many cars are in the "
        "parking lot?",
        "There are originally 3 cars. 2 more cars arrive. 3 + 2 = 5.",
        "5",
    ),
    (
        "Leah had 32 chocolates and her sister had 42. If they ate 35, how many pieces do they "
        "have left in total?",
        "Originally, Leah had 32 chocolates. Her sister had 42. So in total they had 32 + 42 = 74. "
        "After eating 35, they had 74 - 35 = 39.",
        "39",
    ),
    (
        "Jason had 20 lollipops. He gave Denny some lollipops. Now Jason has 12 lollipops. How "
        "many lollipops did Jason give to Denny?",
        "Jason started with 20 lollipops. Then he had 12 after giving some to Denny. So he gave "
        "Denny 20 - 12 = 8.",
        "8",
    ),
    (
        "Shawn has five toys. For Christmas, he got two toys each from his mom and dad. How many "
        "toys does he have now?",
        "Shawn started with 5 toys. If he got 2 toys each from his mom and dad, then that is 4 "
        "more toys. 5 + 4 = 9.",
        "9",
    ),
    (
        "There were nine computers in the server room. Five more computers were installed each "
        "day, from monday to thursday. How many computers are now in the server room?",
        "There were originally 9 computers. For each of 4 days, 5 more computers were added. So 5 "
        "* 4 = 20 computers were added. 9 + 20 is 29.",
        "29",
    ),
    (
        "Michael had 58 golf balls. On tuesday, he lost 23 golf balls. On wednesday, he lost 2 "
        "more. How many golf balls did he have at the end of wednesday?",
        "Michael started with 58 golf balls. After losing 23 on tuesday, he had 58 - 23 = 35. "
        "After losing 2 more, he had 35 - 2 = 33 golf balls.",
        "33",
    ),
    (
        "Olivia has $23. She bought five bagels for $3 each. How much money does she have left?",
        "Olivia had 23 dollars. 5 bagels for 3 dollars each will be 5 x 3 = 15 dollars. So she has "
        "23 - 15 dollars left. 23 - 15 is 8.",
        "8",
    ),
)
"""Question, chain of thought and answer: the worked examples of Wei et al. 2022, table 20
(https://arxiv.org/abs/2201.11903)."""


def _shots(question: str, answer: str) -> str:
    parts = (f"{question} {q}\n{answer} {why} The answer is {n}.\n\n" for q, why, n in WORKED)
    return "".join(parts)


_PAPER = Template(_shots("Q:", "A:") + "Q: {question}\nA:")
TEMPLATES = {
    "plain": Template(
        _shots("Question:", "Answer:") + "Question: {question}\nAnswer:", ("\nQuestion:",)
    ),
    "zero-shot": Template(
        "Question: {question}\nAnswer: Let's think step by step.", ("\nQuestion:",)
    ),
    "chat": Template(
        "{question}\nReason step by step, and end with a line `#### <number>` that holds nothing "
        "but the answer.",
        chat=True,
    ),
    "paper-yi": _PAPER,
    "paper-llama2": _PAPER,
}
_SIGN = r"(?:(?<![\d)])-\$?|\$-?)?"  # the minus of "20-15" and "(4)-1" is no sign
_NUMBER = _SIGN + r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_HASHES = re.compile(rf"####\s*({_NUMBER})")
_SAID = re.compile(r"answer is|\\boxed\{", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_MINUS = "\N{MINUS SIGN}"


class GSM8K(HubTask):
    """1319 questions with one number as the answer. MIT licence.

    Scored: exact match of the final number. The hub id is openai/gsm8k; `path` is a JSONL file with
    the same fields, "question" and "answer" (which ends in `#### N`).
    """

    name = "gsm8k"
    licence = "MIT"
    max_new = 256
    rows = ("openai/gsm8k", "main", "test")
    fields: ClassVar = {"question": str, "answer": str}
    templates = TEMPLATES

    def load(self) -> list[Example]:
        """Return the questions. Raises `ValueError` for an answer without a number."""
        examples = []
        for index, row in enumerate(self.source.load()):
            if final_number(row["answer"]) is None:
                raise ValueError(f'{self.version}, row {index}: its "answer" has no number')
            question = {"question": row["question"].strip()}
            examples.append(self.template.example(f"gsm8k/{index}", question, row))
        return examples

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {"exact_match": 1.0 or 0.0}."""
        wanted = final_number(str(example.data["answer"]))
        found = final_number(before_stop(completion, self.stop or ("\nQ:", "\nQuestion:")))
        return {"exact_match": float(found == wanted)}


def final_number(text: str) -> Decimal | None:
    """Return the number that a text gives as its answer, or None without any.

    That is the number after the first `####`, else the one that the last sentence with "answer is"
    or `\\boxed{` gives after these words (and after its last equals sign, if it has one), else the
    last number. Currency signs and commas between thousands do not count, nor does a period at the
    end.

    >>> final_number("If the answer is 3 a day, 400 x 3 = 1200. The answer is 400 x 3 = $1,200.")
    Decimal('1200')
    """
    text = text.replace(_MINUS, "-")
    numbers, hashes = re.findall(_NUMBER, text), _HASHES.search(text)
    if not numbers:
        return None
    found = hashes[1] if hashes else _said(text) or numbers[-1]
    return Decimal(found.replace("$", "").replace(",", ""))


def _said(text: str) -> str | None:
    for words in reversed(list(_SAID.finditer(text))):
        sentence = _SENTENCE_END.split(text[words.end() :], maxsplit=1)[0]
        result = re.search(_NUMBER, sentence.rpartition("=")[2]) or re.search(_NUMBER, sentence)
        if result:
            return result[0]
    return None
