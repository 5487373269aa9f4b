"""What the page's viewer steps through: every completion, token by token and step by step.

It is embedded in the page, so it is small: a token is its text and one letter for who proposed it,
a step is a list of eight numbers; a node of a tree is a place in the run's list of texts, a
parent, a percentage and a letter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ouroboros.bench.metrics.metrics import repetition
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.plots.style import SOURCES
from ouroboros.bench.report.token_text import Pieces, splitter

LETTERS = {name: chr(ord("a") + place) for place, name in enumerate(SOURCES)}
STEP = ("new", "drafted", "accepted", "scored", "draft_calls", "draft_ms", "verify_ms", "host_ms")
"""What the numbers of a step are, in this order."""


class Texts:
    """The texts of single tokens, each once, named by their places."""

    def __init__(self, split: Pieces) -> None:
        self.split = split
        self.all: list[str] = []
        self._places: dict[int, int] = {}

    def place(self, token: int, before: int) -> int:
        """Return the place of a token's text, as it reads after another token; its id where it is
        a part of a character."""
        if token not in self._places:
            text = self.split([before, token])[-1]
            self._places[token] = len(self.all)
            self.all.append(text if text.strip("\N{REPLACEMENT CHARACTER}") else f"#{token}")
        return self._places[token]


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

    Where they hold more than `most_tokens`, prompts are taken at even distances; of as many nodes
    there are trees. `tokenizer` is its place, where that is not run.json's.
    """
    model = measured.run["model"]
    place, known = tokenizer or model.get("target"), model.get("tokenizer")
    split = splitter(place, fingerprint=known, own=tokenizer is not None)
    by_prompt: dict[str, dict[str, Sample]] = {}
    for sample in measured.samples:
        by_prompt.setdefault(sample.example, {}).setdefault(sample.decoder, sample)
    texts = Texts(split)
    names = list(by_prompt)
    chosen = _evenly(names, [_tokens(by_prompt[name].values()) for name in names], most_tokens)
    room, prompts = most_tokens, []
    for name in chosen:
        samples = {}
        for decoder, sample in by_prompt[name].items():
            trees = measured.trees.get(sample.key, [])
            room -= sum(len(tree.tokens) for tree in trees)
            shown = [_tree(tree, texts) for tree in trees if room >= 0]
            samples[decoder] = _completion(sample, split) | ({"trees": shown} if shown else {})
        group = next(iter(by_prompt[name].values())).group
        prompts.append({"id": name, "group": group, "samples": samples})
    return {
        "label": label,
        "decoders": list(measured.run["decoders"]),
        "timed": measured.run.get("timing", True),
        "prompts_in_all": len(names),
        "texts": texts.all,
        "trees_left_out": room < 0,
        "prompts": prompts,
    }


def _tree(tree: ProposedTree, texts: Texts) -> dict:
    """A tree as the page draws it; percentages are empty where the drafter did not say."""
    parents = [max(0, parent) for parent in tree.parents]
    tokens = zip(tree.tokens, parents, strict=True)
    source = tree.source or ("",) * len(tree.tokens)
    return {
        "text": [texts.place(token, tree.tokens[parent]) for token, parent in tokens],
        "parent": list(tree.parents),
        "percent": [round(100 * share) for share in tree.probability],
        "source": "".join(LETTERS.get(name, LETTERS["unknown"]) for name in source),
        "path": list(tree.path),
        "then": texts.place(tree.then, tree.tokens[tree.path[-1]]),
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
        "repetition": repetition(sample.new_tokens),
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
