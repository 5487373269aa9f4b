"""Time the host's work of a step: every drafter, with a target and a draft that compute nothing.

    python scripts/trials/host_overhead.py
    python scripts/trials/host_overhead.py --decoders ouroboros --contexts 8192 --profile

The text is this project's own source in the reference tokenizer. For each decoder of conf/decoder
and each context: milliseconds of host work per step (the least of the repeats, each a mean over the
steps), and per call of either model. The last line on stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate

import ouroboros
from ouroboros.bench.replay.scripted import Drafting, ScriptedModel
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.pair import PairSpec, load_tokenizer
from ouroboros.cli.configs import composed
from ouroboros.costs import UNTIMED
from ouroboros.decode import Drafter, stream
from ouroboros.decoders import decoder_factories
from ouroboros.select import Ranked, TokenSelector
from ouroboros.tree import TokenTree

PACKAGE = Path(ouroboros.__file__).parent


class Script(TokenSelector):
    """A choice by position alone: `text[position]`, with the probability `shares[position]`.

    The runners-up are the tokens after the chosen one in the order of ids, each half as probable as
    the one before; the first of them has what the choice leaves.
    """

    def __init__(self, text: Sequence[int], shares: Sequence[float] | None = None) -> None:
        self.text = list(text)
        self.shares = [1.0] * len(self.text) if shares is None else list(shares)
        self.spent_s = 0.0

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        started = time.perf_counter()
        base, depths = len(tokens), tree.depths()
        chosen = [self.text[base + depths[node]] for node in tree.logit_nodes]
        self.spent_s += time.perf_counter() - started
        return chosen

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        started = time.perf_counter()
        base, depths = len(tokens), tree.depths()
        places = [base + int(depths[node]) for node in tree.logit_nodes]
        ids = np.array([[self.text[p] + rank for rank in range(count)] for p in places])
        first = np.array([[self.shares[p]] for p in places])
        shares = np.hstack([first, (1 - first) * 0.5 ** np.arange(count - 1)])[:, :count]
        found = Ranked(ids, np.log(np.maximum(shares, 1e-30)), shares)
        self.spent_s += time.perf_counter() - started
        return found

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        raise NotImplementedError("a script knows no scores")


def draft_script(text: Sequence[int], agreement: float, seed: int = 0) -> Script:
    """Return a draft's script: it says `text`'s token in a share `agreement` of the positions,
    and is surer of those."""
    draw = random.Random(seed)
    tokens, shares = [], []
    for token in text:
        right = draw.random() < agreement
        tokens.append(token if right else token + 1)
        shares.append(draw.uniform(0.6, 1.0) if right else draw.uniform(0.2, 0.8))
    return Script(tokens, shares)


def host_steps(
    drafter: Drafter, script: Script, drafting: Script, *, prompt: int, max_new: int
) -> Iterator[tuple[float, int, int]]:
    """Decode a script from its first `prompt` tokens on; yield, for each step after the first, the
    host's seconds, the draft calls and the new tokens.

    The first step takes in the whole prompt, once, and is left out.
    """
    driven = Drafting(drafter, drafting)
    steps = stream(
        ScriptedModel(),  # type: ignore[arg-type]
        driven,
        script.text[:prompt],
        max_new=max_new,
        choose=script,
    )
    started, spent = time.perf_counter(), script.spent_s + drafting.spent_s
    for trace in steps:
        now, found = time.perf_counter(), script.spent_s + drafting.spent_s
        if len(trace.steps) > 1:
            last = trace.steps[-1]
            yield now - started - (found - spent), last.draft_calls, last.new
        started, spent = time.perf_counter(), script.spent_s + drafting.spent_s


@dataclass(frozen=True)
class Job:
    """What is decoded: `tokens` new ones after `context` ones, `repeats` times."""

    script: Script
    drafting: Script
    context: int
    tokens: int
    repeats: int


def text() -> list[int]:
    """Return this project's source as token ids of the reference pair."""
    tokenizer = load_tokenizer(PairSpec("reference", "reference/target"))
    files = sorted(PACKAGE.rglob("*.py"))
    return list(tokenizer("\n".join(file.read_text() for file in files)).input_ids)


def makers(names: list[str], overrides: list[str]) -> Mapping[str, Callable]:
    """Return a maker for each decoder at its configured settings, on a draft that computes
    nothing."""
    config = composed([f"decoder=[{','.join(names)}]", *overrides])
    model, costs = ScriptedModel(), load_costs(config["costs"] or UNTIMED)
    return decoder_factories(config["decoder"], model, costs)


def host_ms(make: Callable, job: Job) -> dict[str, float]:
    """Return the host's milliseconds per step and per call, and what a step consists of."""
    means, calls, steps, new = [], 0, 0, 0
    for _ in range(job.repeats):
        found = list(
            host_steps(make(), job.script, job.drafting, prompt=job.context, max_new=job.tokens)
        )
        seconds, steps = sum(s for s, _, _ in found), len(found)
        calls, new = sum(c for _, c, _ in found), sum(n for _, _, n in found)
        means.append(1e3 * seconds / steps)
    return {
        "ms_per_step": min(means),
        "ms_per_call": min(means) * steps / (steps + calls),
        "draft_calls_per_step": calls / steps,
        "new_per_step": new / steps,
    }


def host_overhead(args: argparse.Namespace) -> None:
    """Measure; print a table and one JSON document."""
    words = text()
    longest = max(args.contexts) + args.tokens
    if longest + 64 > len(words):
        raise ValueError(f"the text has {len(words)} tokens: ask for less than {longest}")
    script, drafting = Script(words), draft_script(words, args.agreement)
    rows = []
    for name, make in makers(args.decoders, args.overrides).items():
        for context in args.contexts:
            job = Job(script, drafting, context, args.tokens, args.repeats)
            watch = cProfile.Profile()
            found = watch.runcall(host_ms, make, job) if args.profile else host_ms(make, job)
            rows.append({"decoder": name, "context": context, **found})
            if args.profile:
                pstats.Stats(watch, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    print(json.dumps(rows))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    usual = "greedy speculative lookahead prompt_lookup ouroboros ouroboros_paper"
    add("--decoders", nargs="+", default=usual.split())
    add("--contexts", type=int, nargs="+", default=[512, 2048, 8192])
    add("--tokens", type=int, default=400, help="new tokens in each repeat")
    add("--repeats", type=int, default=5)
    add("--agreement", type=float, default=0.85, help="of draft and target")
    add("--profile", action="store_true", help="print where the time goes")
    add("--overrides", nargs="*", default=[], help="decoder.speculative.gamma=5")
    return parser


if __name__ == "__main__":
    host_overhead(parser().parse_args())
