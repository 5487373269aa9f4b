"""Spec-Bench (Xia et al. 2024, https://arxiv.org/abs/2401.07851): speed over six kinds of text."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ouroboros.bench.tasks.answers import answer_of
from ouroboros.bench.tasks.dataset import DatasetTask
from ouroboros.bench.tasks.task import Example

URL = "https://github.com/hemingkx/Spec-Bench/blob/main/data/spec_bench/question.jsonl"


class SpecBench(DatasetTask):
    """480 questions in 13 categories; 80 of them (MT-Bench) have two turns. Apache-2.0.

    Nothing is scored, because the benchmark measures speed. `path` is its question.jsonl, which is
    not on the hub; published runs use the template `vicuna`. Each turn of a question is an example,
    "<question_id>/1" or "<question_id>/2"; its group is the question's category.
    """

    name = "specbench"
    licence = "Apache-2.0"
    max_new = 256
    needs_path = f"<file>: download {URL}"
    fields: ClassVar = {"question_id": int, "category": str, "turns": list}

    def load(self) -> list[Example]:
        """Return every turn of every question. The prompt of a later turn is its question alone,
        until `continued` puts the conversation before it."""
        turns: list[Example] = []
        for row in self.rows():
            for number, question in enumerate(row["turns"], start=1):
                fields, name = {"question": question}, f"{row['question_id']}/{number}"
                turn = self.prompt.example(name, fields, row, group=row["category"])
                if number > 1:
                    turn = replace(turn, follows=turns[-1].id)
                elif not turn.messages:
                    turn = replace(turn, prompt=self.prompt.opening + turn.prompt)
                turns.append(turn)
        return turns

    def continued(self, example: Example, before: Example, answer: str) -> Example:
        """Return the next turn of a conversation: the prompt of the turn `before`, its `answer` up
        to the first stop string, then the question of `example`."""
        answer = answer_of(answer, self.stop).strip()
        if before.messages:
            reply = {"role": "assistant", "content": answer}
            return replace(example, messages=(*before.messages, reply, *example.messages))
        joint = self.prompt.joint
        return replace(example, prompt=f"{before.prompt} {answer}{joint}{example.prompt}")
