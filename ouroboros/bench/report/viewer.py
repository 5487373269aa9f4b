"""Prepare the data of the page's viewer: every completion, token by token and step by step.

The data are embedded in the page, so they are kept small: a token is its text and a letter for its
source, a step is a list of eight numbers (`STEP`), and a tree node is an index into the run's list
of token texts, a parent, a percentage and a letter. templates/page.js and tree.js read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ouroboros.bench.metrics.metrics import repetition
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.style import SOURCES
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.tree_recorder import ProposedTree
from ouroboros.core.detokenizer import Detokenizer
from ouroboros.models import vocab
from ouroboros.models.load import model_path

LETTERS = {name: chr(ord("a") + place) for place, name in enumerate(SOURCES)}
STEP = ("new", "drafted", "accepted", "scored", "draft_calls", "draft_ms", "verify_ms", "host_ms")
"""The numbers of a step, in this order."""


def legend() -> list[dict]:
    """Return the name, letter, colour, line (CSS border style) and meaning of each token source."""
    return [
        {"name": n, "letter": LETTERS[n], "colour": m.colour, "line": m.line, "meaning": meaning}
        for n, (m, meaning) in SOURCES.items()
    ]


def viewer_run(
    measured: Measured, label: str, *, most_tokens: int, tokenizer: str | None = None
) -> dict:
    """Return one run's data for the page: all decoders' completions of the first repeat.

    If they have more than `most_tokens` tokens, only evenly spaced prompts are included; trees are
    included up to the same number of nodes. `tokenizer` is a folder or hub id that replaces
    run.json's. Raises `ValueError` if no tokenizer is found there, or another model's.
    """
    model = measured.run["model"]
    place, fingerprint = tokenizer or model.get("target"), model.get("tokenizer")
    found: PreTrainedTokenizerBase | None = None
    if not tokenizer:
        found = ResultsFolder(measured.folder).load_tokenizer()
    if found is None and place:
        found = find_tokenizer(place, fingerprint)
    if tokenizer and not found:
        raise ValueError(f"tokenizer={tokenizer}: no tokenizer of the run's model; give its folder")

    def split(tokens: Sequence[int]) -> list[str]:
        """Return the text of each token, or its id without a tokenizer. A token that ends inside
        a character adds "", and the next one adds the whole character."""
        if found is None:
            return [f"{token} " for token in tokens]
        text = Detokenizer(found, skip_special=False)
        return [text.add(token) for token in tokens]

    prompts: dict[str, dict[str, Sample]] = {}
    for sample in sorted(measured.samples, key=lambda sample: sample.repeat):
        prompts.setdefault(sample.example, {}).setdefault(sample.decoder, sample)
    total = sum(len(s.new_tokens) for samples in prompts.values() for s in samples.values())
    count = len(prompts) if total <= most_tokens else max(1, len(prompts) * most_tokens // total)
    chosen = np.linspace(0, len(prompts) - 1, count).round().astype(int)
    texts: dict[int, tuple[int, str]] = {}  # by token: its index in the list, its text
    nodes_left, shown = most_tokens, []
    for prompt, samples in (list(prompts.items())[place] for place in chosen):
        completions = {}
        for decoder, sample in samples.items():
            trees = measured.trees.get(sample.key, [])
            nodes_left -= sum(len(step.tree) for step in trees)
            completions[decoder] = {
                "pieces": split(sample.new_tokens),
                "sources": _letters(source for step in sample.steps for source in step.sources),
                "steps": [
                    [s.new, s.drafted, s.accepted, s.scored, s.draft_calls]
                    + [round(1e3 * s.rows * part, 2) for part in (s.draft_s, s.verify_s, s.host_s)]
                    for s in sample.steps
                ],
                "repetition": repetition(sample.new_tokens),
                "finish": sample.finish,
                "error": sample.error,
            }
            if trees and nodes_left >= 0:
                completions[decoder]["trees"] = [_tree(tree, texts, split) for tree in trees]
        group = next(iter(samples.values())).group
        shown.append({"id": prompt, "group": group, "samples": completions})
    return {
        "label": label,
        "decoders": list(measured.run["decoders"]),
        "timed": measured.run.get("timing", True),
        "prompts_in_all": len(prompts),
        "repeats": measured.run.get("repeats", 1),
        "texts": [text for _, text in texts.values()],
        "as_ids": found is None,
        "trees_left_out": nodes_left < 0,
        "prompts": shown,
    }


def find_tokenizer(place: str, fingerprint: str | None = None) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a folder, "reference/target" or a hub id in the local cache. Return
    None if there is none, or if `fingerprint` shows that it belongs to another model."""
    try:
        found = AutoTokenizer.from_pretrained(model_path(place), local_files_only=True)
    except Exception:  # tokenizers raise all kinds; the viewer then shows ids
        return None
    return found if fingerprint in (None, vocab.fingerprint(found)) else None


def _tree(step: ProposedTree, texts: dict[int, tuple[int, str]], split: Callable) -> dict:
    """Return a tree for the page: {"text", "parent", "percent", "source", "path", "then"}.

    The first four have an entry per node: an index into `texts`, the parent, a percentage, a
    letter. "then" is the token after the path as an index into `texts`. New token texts are added
    to `texts`.
    """
    tree = step.tree

    def place(token: int, parent: int) -> int:
        if token not in texts:
            text = split([tree.tokens[parent], token])[-1]
            part_of_a_character = not text.strip("\N{REPLACEMENT CHARACTER}")
            texts[token] = (len(texts), f"#{token}" if part_of_a_character else text)
        return texts[token][0]

    return {
        "text": [place(*pair) for pair in zip(tree.tokens, [0, *tree.parents[1:]], strict=True)],
        "parent": list(tree.parents),
        "percent": [round(100 * share) for share in tree.probability],
        "source": _letters(tree.source or ("",) * len(tree)),
        "path": list(step.path),
        "then": place(step.then, step.path[-1]),
    }


def _letters(sources: Iterable[str]) -> str:
    return "".join(LETTERS.get(name, LETTERS["unknown"]) for name in sources)
