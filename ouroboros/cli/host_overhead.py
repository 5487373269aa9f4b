"""What a step costs on the host, with a target and a draft that compute nothing.

`ouroboros host_overhead`; what can be typed stands in `ouroboros.cli.arguments`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from ouroboros.bench.metrics.scripted import Script, ScriptedModel, draft_script, host_steps
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.pair import Pair, PairSpec, load_tokenizer
from ouroboros.cli.build import build_decoders
from ouroboros.cli.configs import composed
from ouroboros.costs.named import UNTIMED

PACKAGE = Path(__file__).resolve().parents[1]


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
    return build_decoders(config["decoder"], Pair(model, model), costs)  # type: ignore[arg-type]


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


def host_overhead(args: argparse.Namespace) -> int:
    """Measure, print a table and the document; return 0."""
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
    return 0
