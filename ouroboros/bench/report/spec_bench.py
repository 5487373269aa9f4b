"""Write runs in Spec-Bench's answer format, so that its scripts can read them.

There is one file per decoder and one line per question, as in
https://github.com/hemingkx/Spec-Bench: `choices` are repeats, and each list in a choice has one
entry per turn, except `accept_lengths`, which has one entry per step (its new tokens). A question
with a failed or missing turn is left out, so that nothing unmeasured is averaged.

Spec-Bench's speed.py counts a decoder's tokens from `new_tokens`, but the baseline's by tokenizing
the text again, which loses the end-of-sequence token. So its speedups are slightly above ours; its
tokens/s and mean accepted tokens (our tokens_per_target_call) are the same.
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
"""The ids of a task with turns: "<question id>/<turn>", where turns count from 1."""


def write_answers(measured: Measured, folder: Path) -> None:
    """Write `<model>-<decoder>.jsonl` for each decoder that has answers."""
    folder.mkdir(parents=True, exist_ok=True)
    for decoder in measured.run["decoders"]:
        if lines := answers(measured.run, measured.samples, decoder):
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            file = folder / f"{measured.run['model']['name']}-{decoder}.jsonl"
            file.write_text(text, encoding="utf-8")


def answers(run: Mapping, samples: Sequence[Sample], decoder: str) -> list[dict]:
    """Return one decoder's answers, in the order of the questions."""
    examples = list(dict.fromkeys(sample.example for sample in samples))
    matches = [TURN.fullmatch(example) for example in examples]
    places = {  # (question id, turn) of each example: from its id, else numbered from 1
        example: (int(match[1]), int(match[2])) if match and all(matches) else (number, 1)
        for number, (example, match) in enumerate(zip(examples, matches, strict=True), start=1)
    }
    turns = dict(sorted(places.values()))  # the last turn of each question
    asked: dict[int, dict[int, list[Sample]]] = {question: {} for question in turns}
    for sample in sorted(samples, key=lambda one: places[one.example][1]):
        if sample.decoder == decoder and not sample.error:
            asked[places[sample.example][0]].setdefault(sample.repeat, []).append(sample)
    found = []
    for question, repeats in asked.items():
        whole = {n: own for n, own in sorted(repeats.items()) if len(own) == turns[question]}
        if not whole:
            continue
        identity = f"{run.get('identity')}/{decoder}/{question}"
        choices = [
            {
                "index": repeat,
                "turns": [s.text for s in own],
                "decoding_steps": [len(s.steps) for s in own],
                "new_tokens": [len(s.new_tokens) for s in own],
                "wall_time": [s.wall_s for s in own],
                "accept_lengths": [step.new for s in own for step in s.steps],
            }
            for repeat, own in whole.items()
        ]
        found.append(
            {
                "question_id": question,
                "category": next(iter(whole.values()))[0].group or run["task"]["name"],
                "answer_id": uuid.uuid5(uuid.NAMESPACE_URL, identity).hex,
                "model_id": f"{run['model']['name']}-{decoder}",
                "choices": choices,
                "tstamp": datetime.fromisoformat(run["provenance"]["time"]).timestamp(),
            }
        )
    return found
