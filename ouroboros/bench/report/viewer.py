"""What the page's viewer steps through: every completion, token by token and step by step.

Kept small, since it is embedded in the page: a token is its text and one letter for who proposed
it, a step is a list of eight numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ouroboros.bench.measure.metrics import repetition_rate
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.plots.style import SOURCES
from ouroboros.bench.report.token_text import Pieces, splitter

LETTERS = {name: chr(ord("a") + place) for place, name in enumerate(SOURCES)}
STEP = ("new", "drafted", "accepted", "scored", "draft_calls", "draft_ms", "verify_ms", "host_ms")
"""What the numbers of a step are, in this order."""


def legend() -> list[dict]:
    """Return how each source is drawn and what it means."""
    return [
        {
            "name": name,
            "letter": LETTERS[name],
            "colour": mark.colour,
            "line": mark.line,
            "meaning": meaning,
        }
        for name, (mark, meaning) in SOURCES.items()
    ]


def viewer_run(
    measured: Measured, label: str, *, most_tokens: int, tokenizer: str | None = None
) -> dict:
    """Return one run's completions: of each prompt the first repeat, by all decoders.

    Where they hold more than `most_tokens`, prompts are taken at even distances. `tokenizer` is its
    place, where that is not run.json's.
    """
    model = measured.run["model"]
    place, known = tokenizer or model.get("target"), model.get("tokenizer")
    split = splitter(place, fingerprint=known, own=tokenizer is not None)
    by_prompt: dict[str, dict[str, Sample]] = {}
    for sample in measured.samples:
        by_prompt.setdefault(sample.example, {}).setdefault(sample.decoder, sample)
    names = list(by_prompt)
    chosen = _evenly(names, [_tokens(by_prompt[name].values()) for name in names], most_tokens)
    return {
        "label": label,
        "decoders": list(measured.run["decoders"]),
        "prompts_in_all": len(names),
        "prompts": [
            {
                "id": name,
                "group": next(iter(getattr(s, "group", "") for s in by_prompt[name].values())),
                "samples": {d: _completion(s, split) for d, s in by_prompt[name].items()},
            }
            for name in chosen
        ],
    }


def _completion(sample: Sample, split: Pieces) -> dict:
    sources = [source for step in sample.steps for source in step.sources]
    return {
        "pieces": split(sample.new_tokens),
        "sources": "".join(LETTERS.get(source, LETTERS["unknown"]) for source in sources),
        "steps": [
            [
                *(step.new, step.drafted, step.accepted, step.scored, step.draft_calls),
                *(round(1e3 * s, 2) for s in (step.draft_s, step.verify_s, step.host_s)),
            ]
            for step in sample.steps
        ],
        "repetition": repetition_rate(sample.new_tokens),
        "finish": sample.finish,
        "error": sample.error,
    }


def _tokens(samples) -> int:
    return sum(len(sample.new_tokens) for sample in samples)


def _evenly(names: Sequence[str], tokens: Sequence[int], most: int) -> list[str]:
    """The names that may be shown: all, or as many as fit on average, at least one."""
    total = sum(tokens)
    if total <= most:
        return list(names)
    keep = max(1, len(names) * most // total)
    places = np.linspace(0, len(names) - 1, keep).round().astype(int)
    return [names[place] for place in places]
