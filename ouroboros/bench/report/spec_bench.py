"""Runs written in Spec-Bench's answer format, so that its own scripts can read them.

One file per decoder and one line per question, as https://github.com/hemingkx/Spec-Bench writes
them: `choices` are repeats, and each list in a choice has one entry per turn, but `accept_lengths`,
which has one per step (the tokens that the step added). A question of which a turn failed or is
missing is left out, so that nothing is averaged that was not measured.

Its speed.py counts a decoder's tokens from `new_tokens` but the baseline's by tokenizing the text
again, where the end-of-sequence token is lost: its ratios are a little above the macro_throughput
ratios here, its tokens/s and its mean accepted tokens (our tokens_per_target_call) are the same.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.report.gather import Measured

TURN = re.compile(r"(\d+)/(\d+)")
"""Ids of a task with turns: "<question id>/<turn>", turns from 1."""


def write_answers(measured: Measured, folder: Path) -> list[Path]:
    """Write `<model>-<decoder>.jsonl` for each decoder that has answers; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    model, files = measured.run["model"]["name"], []
    for decoder in measured.run["decoders"]:
        lines = answers(measured.run, measured.samples, decoder)
        if lines:
            files.append(folder / f"{model}-{decoder}.jsonl")
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            files[-1].write_text(text, encoding="utf-8")
    return files


def answers(run: Mapping, samples: Sequence[Sample], decoder: str) -> list[dict]:
    """Return one decoder's answers, in the order of the questions."""
    places = _questions(samples)
    turns_of: dict[int, int] = {}
    for question, turn in places.values():
        turns_of[question] = max(turns_of.get(question, 0), turn)
    mine: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.decoder == decoder and not sample.error:
            mine.setdefault(places[sample.example][0], []).append(sample)
    found = []
    for question in turns_of:
        choices = _choices(mine.get(question, []), places, turns_of[question])
        if choices:
            first = mine[question][0]
            found.append(_answer(run, decoder, question, first.group, choices))
    return found


def _questions(samples: Sequence[Sample]) -> dict[str, tuple[int, int]]:
    """(Question id, turn) of each example: as its id says, else running numbers from 1."""
    examples = list(dict.fromkeys(sample.example for sample in samples))
    matches = [TURN.fullmatch(example) for example in examples]
    if all(matches):
        return {e: (int(m[1]), int(m[2])) for e, m in zip(examples, matches, strict=True) if m}
    return {example: (number, 1) for number, example in enumerate(examples, start=1)}


def _choices(
    samples: Sequence[Sample], places: Mapping[str, tuple[int, int]], turns: int
) -> list[dict]:
    """One choice per repeat that has all turns."""
    found = []
    for repeat in sorted({sample.repeat for sample in samples}):
        own = [sample for sample in samples if sample.repeat == repeat]
        own.sort(key=lambda sample: places[sample.example][1])
        if len(own) == turns:
            found.append(
                {
                    "index": repeat,
                    "turns": [s.text for s in own],
                    "decoding_steps": [len(s.steps) for s in own],
                    "new_tokens": [len(s.new_tokens) for s in own],
                    "wall_time": [s.wall_s for s in own],
                    "accept_lengths": [step.new for s in own for step in s.steps],
                }
            )
    return found


def _answer(run: Mapping, decoder: str, question: int, category: str, choices: list[dict]) -> dict:
    identity = f"{run.get('identity')}/{decoder}/{question}"
    return {
        "question_id": question,
        "category": category or run["task"]["name"],
        "answer_id": uuid.uuid5(uuid.NAMESPACE_URL, identity).hex,
        "model_id": f"{run['model']['name']}-{decoder}",
        "choices": choices,
        "tstamp": datetime.fromisoformat(run["provenance"]["time"]).timestamp(),
    }
