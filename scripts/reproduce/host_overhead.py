"""Time the host's work per step: main drafters, with a target and a draft that compute nothing.

    python scripts/reproduce/host_overhead.py

The text is this project's source in the reference tokenizer. For each of `DECODERS` and context,
and for several sequences together: milliseconds of host work per sequence and step (the minimum
over repeats, each a mean over steps). The last line on stdout is one JSON document.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import ouroboros
from ouroboros.bench.replay.scripted import Drafting, ScriptedModel
from ouroboros.bench.run.folder import load_costs
from ouroboros.bench.run.pair import PairSpec, load_tokenizer
from ouroboros.core.select import Ranked, TokenSelector
from ouroboros.core.tree import TokenTree
from ouroboros.costs import UNTIMED
from ouroboros.decode import Decoding, begin, together
from ouroboros.decoder_factory import decoder_config, decoder_factories

DECODERS = ["greedy", "speculative", "lookahead", "prompt_lookup", "ouroboros", "ouroboros_paper"]
CONTEXTS = [512, 2048, 8192]
TOKENS = 400  # new tokens in each repeat
REPEATS = 5
AGREEMENT = 0.85  # of draft and target
BATCH = "h200-34b-6b", 8  # costs and number of sequences of the batch, at the shortest context


class Script(TokenSelector):
    """Selector that looks tokens up: after `position` tokens it returns `text[position]`, with the
    probability `shares[position]`.

    Next in rank are the ids after it, each half as probable as the previous one.
    `spent_s` is the time spent in the selector, to be subtracted from the time of a step.
    """

    def __init__(self, text: Sequence[int], shares: Sequence[float] | None = None) -> None:
        self.text, self.shares, self.spent_s = text, shares or [1.0] * len(text), 0.0

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        return self.ranked(logits, tokens, tree, 1).ids[:, 0].tolist()

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        started = time.perf_counter()
        at = len(tokens) + tree.depths()[list(tree.logit_nodes)]
        ids = np.array([self.text[position] for position in at])[:, None] + np.arange(count)
        first = np.array([[self.shares[position]] for position in at])
        shares = np.hstack([first, (1 - first) * 0.5 ** np.arange(count - 1)])[:, :count]
        found = Ranked(ids, np.log(np.maximum(shares, 1e-30)), shares)
        self.spent_s += time.perf_counter() - started
        return found


def draft_script(text: Sequence[int], agreement: float) -> Script:
    """Return the script of a draft that is right at a share `agreement` of positions, and more
    confident there."""
    draw, tokens, shares = random.Random(0), [], []
    for token in text:
        right = draw.random() < agreement
        tokens.append(token if right else token + 1)
        shares.append(draw.uniform(0.6, 1.0) if right else draw.uniform(0.2, 0.8))
    return Script(tokens, shares)


def host_time(
    make: Callable[[], Any],
    scripts: Sequence[tuple[Script, Script]],
    *,
    prompt: int,
    max_new: int,
) -> tuple[float, list[Decoding]]:
    """Decode the text of each (target, draft) pair of `scripts` after its first `prompt` tokens,
    all in one batch. Return the host seconds per sequence and step, without the first step (the
    prefill), and the decodings."""

    def spent_s() -> float:
        return sum(script.spent_s for pair in scripts for script in pair)

    target: Any = ScriptedModel()
    decodings = [
        begin(target, Drafting(make(), draft), own.text[:prompt], max_new=max_new, choose=own)
        for own, draft in scripts
    ]
    steps = together(decodings, len(scripts))
    next(steps)
    started = time.perf_counter() - spent_s()
    for _ in steps:
        pass
    seconds = time.perf_counter() - spent_s() - started
    return seconds / sum(len(decoding.trace.steps) - 1 for decoding in decodings), decodings


def host_overhead() -> None:
    """Time all decoders; print a table and a JSON document."""
    tokenizer = load_tokenizer(PairSpec("SmolLM2-135M-Instruct", "reference/target"))
    source = "\n".join(p.read_text() for p in sorted(Path(ouroboros.__file__).parent.rglob("*.py")))
    text = list(tokenizer(source).input_ids)
    draft: Any = ScriptedModel()
    configs = {name: decoder_config(name) for name in DECODERS}
    rows = []
    for costs, size, contexts in ((UNTIMED, 1, CONTEXTS), (*BATCH, CONTEXTS[:1])):
        parts = [text[i * len(text) // size :] for i in range(size)]
        scripts = [(Script(part), draft_script(part, AGREEMENT)) for part in parts]
        made: Any = decoder_factories(configs, draft, load_costs(costs), adapt=False)
        for (name, make), context in product(made.items(), contexts):
            times = [
                host_time(make, scripts, prompt=context, max_new=TOKENS)[0] for _ in range(REPEATS)
            ]
            row = {"decoder": name, "sequences": size, "context": context}
            rows.append({**row, "ms_per_step": 1e3 * min(times)})
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".3f"))
    print(json.dumps(rows))


if __name__ == "__main__":
    host_overhead()
