"""What a step costs on the host: every drafter with a target and a draft that compute nothing.

    python scripts/host_overhead.py
    python scripts/host_overhead.py --decoders ouroboros --contexts 8192 --profile

The text is this project's own source in the reference tokenizer. For each decoder of conf/decoder
and each context: milliseconds of host work per step (the least of the repeats, each a mean over
the steps), and per call of either model. The last line on stdout is one JSON document.
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

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tabulate import tabulate

from ouroboros.bench.measure.scripted import Script, ScriptedModel, draft_script, host_steps
from ouroboros.bench.run.pair import Pair, PairSpec, load_tokenizer
from ouroboros.commands import CONF
from ouroboros.commands.build import build_decoders

PACKAGE = Path(__file__).resolve().parents[1]
DECODERS = ("greedy", "speculative", "lookahead", "prompt_lookup", "ouroboros", "ouroboros_paper")
CONTEXTS = (512, 2048, 8192)


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
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", [f"decoder=[{','.join(names)}]", *overrides])
    options = OmegaConf.to_container(config.decoder, resolve=False)
    assert isinstance(options, dict)
    model = ScriptedModel()
    return build_decoders(options, Pair(model, model))  # type: ignore[arg-type]


def measure(make: Callable, job: Job) -> dict[str, float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoders", nargs="+", default=list(DECODERS))
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS))
    parser.add_argument("--tokens", type=int, default=400, help="new tokens in each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--agreement", type=float, default=0.85, help="of draft and target")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--overrides", nargs="*", default=[], help="decoder.speculative.gamma=5")
    args = parser.parse_args()
    words = text()
    longest = max(args.contexts) + args.tokens
    if longest + 64 > len(words):
        parser.error(f"the text has {len(words)} tokens: ask for less than {longest}")
    script, drafting = Script(words), draft_script(words, args.agreement)
    rows = []
    for name, make in makers(args.decoders, args.overrides).items():
        for context in args.contexts:
            job = Job(script, drafting, context, args.tokens, args.repeats)
            watch = cProfile.Profile()
            found = watch.runcall(measure, make, job) if args.profile else measure(make, job)
            rows.append({"decoder": name, "context": context, **found})
            if args.profile:
                pstats.Stats(watch, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    print(json.dumps(rows))
