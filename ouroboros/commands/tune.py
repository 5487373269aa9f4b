"""Tune every decoder on development text, each with the same number of trials.

    ouroboros tune --decoders speculative ouroboros --trials 16
    ouroboros tune --prompts mine.jsonl --results results/tuning

Each decoder gets its configured settings as the first trial and random ones
from its space for the rest. All trials of all decoders alternate prompt by
prompt; after a first round on a few prompts, the best third of each decoder's
trials goes on to the rest. Each prompt is decoded greedily and sampled
(--temperatures); the geometric mean of the speeds counts. The best settings
are printed and written to tuning.json and tuning.md; put them into
conf/decoder. Never give it a benchmark's prompts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy.stats import gmean
from tqdm import tqdm

from ouroboros.bench.measure.metrics import mean_repetition_rate, output_throughput
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.run.loop import WARM_UP, Bench
from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.bench.run.provenance import provenance
from ouroboros.bench.run.sampling import Sampling
from ouroboros.bench.tasks.humaneval import STOP
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.bench.tasks.task import Example
from ouroboros.commands import CONF

WINDOWS = {
    "window_size": [0, 1, 2, 3, 4, 6, 8, 12],
    "ngram_size": [3, 4, 5, 6, 7, 8],
    "verification_set_size": [1, 2, 3, 4, 6, 8, 12],
}
PUBLISHED = {**WINDOWS, "gamma": [2, 3, 4, 5, 6, 8, 10, 12], "topk": [1, 2, 3, 4, 6]}
SPECULATIVE: dict[str, list] = {
    "gamma": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12],
    "confidence": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
}
SUFFIX: dict[str, list] = {
    "max_tokens": [8, 12, 16, 24, 31, 48, 63],
    "factor": [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
    "offset": [-1.0, 0.0, 1.0, 2.0, 4.0, 6.0],
    "least": [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5],
    "branches": [False, True],
}
SPACES: dict[str, dict[str, list]] = {
    "speculative": SPECULATIVE,
    "lookahead": WINDOWS,
    "ouroboros": {"max_nodes": [16, 24, 32, 48, 64, 96]},
    "ouroboros_paper": PUBLISHED,
    "prompt_lookup": {
        "max_ngram_size": [1, 2, 3, 4, 5],
        "num_tokens": [3, 4, 6, 8, 10, 15, 20, 31],
    },
    "prompt_lookup_adaptive": {
        "max_ngram_size": [1, 2, 3, 4, 5],
        "num_tokens": [8, 12, 15, 20, 31, 63],
        "least": [1, 2, 3, 4, 6, 8],
    },
    "suffix_decoding": SUFFIX,
    "suffix_hybrid": {**SUFFIX, **SPECULATIVE, "threshold": [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]},
    "token_recycling": {
        "nodes": [4, 8, 12, 16, 24, 32, 48, 63, 80],
        "read_prompt": [False, True],
    },
    "racer": {
        "nodes": [6, 8, 12, 16, 24, 32, 48, 63],
        "ngram": [5, 7, 10, 15, 20],
        "shortest": [1, 2, 3, 4],
        "breadth": [2, 3, 4, 6, 8],
        "read_prompt": [False, True],
    },
    "hf_assisted": {
        "num_assistant_tokens": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 20],
        "num_assistant_tokens_schedule": ["constant", "heuristic"],
        "assistant_confidence_threshold": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
    },
    "hf_assisted_constant": {"num_assistant_tokens": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 20]},
    "hf_prompt_lookup": {
        "prompt_lookup_num_tokens": [1, 2, 3, 4, 6, 8, 10, 15],
        "max_matching_ngram_size": [1, 2, 3, 4, 5],
    },
}


@dataclass
class Trial:
    """One setting of one decoder and what it measured."""

    decoder: str
    settings: dict
    samples: dict[float, list[Sample]] = field(default_factory=dict)  # by temperature

    @property
    def name(self) -> str:
        return f"{self.decoder} {json.dumps(self.settings, sort_keys=True)}"

    @property
    def rates(self) -> dict[float, float]:
        """Tokens/s at each temperature."""
        return {
            heat: output_throughput([s for s in found if s.error is None]) or 0.0
            for heat, found in self.samples.items()
        }

    @property
    def tokens_per_s(self) -> float:
        """The geometric mean over temperatures: each counts alike, however slow its text is."""
        return float(gmean(list(self.rates.values())))


def draw(decoder: str, count: int, seed: int) -> list[Trial]:
    """Return the configured settings ({}) and `count - 1` different random ones, or as many as
    there are."""
    rng, space = random.Random(f"{seed}-{decoder}"), SPACES[decoder]
    count = min(count, 1 + math.prod(map(len, space.values())))
    trials = [Trial(decoder, {})]
    seen = {trials[0].name}
    while len(trials) < count:
        trial = Trial(decoder, {key: rng.choice(values) for key, values in space.items()})
        if trial.name not in seen:
            seen.add(trial.name)
            trials.append(trial)
    return trials


def maker(config: Mapping, settings: Mapping, pair: Pair):
    """Return a function that builds a decoder from its config with some settings replaced."""
    options = OmegaConf.create({k: v for k, v in config.items() if k != "draft"})
    for key, value in settings.items():
        OmegaConf.update(options, key, value, force_add=True)
    draft = {"draft": pair.draft} if "draft" in config else {}
    return lambda: instantiate(options, _partial_=True, _convert_="all")(**draft)


def measure(
    trials: list[Trial], examples: list[Example], jobs: Mapping[float, Bench], configs, pair: Pair
) -> None:
    """Run every trial on every example at every temperature, in turn; the trials keep samples."""
    decoders = {id(t): maker(configs[t.decoder], t.settings, pair)() for t in trials}
    for index, example in enumerate(tqdm(examples, desc=f"{len(trials)} trials", unit="prompt")):
        first = index % len(trials)
        for trial in [*trials[first:], *trials[:first]]:
            for heat, job in jobs.items():
                sample = job.measure(decoders[id(trial)], example, 0)
                trial.samples.setdefault(heat, []).append(sample)


def main() -> None:
    """Load, try, report."""
    args = options()
    config = configured(args)
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    pair = load_pair(PairSpec(**instantiate(config["model"], _convert_="all")), with_draft=True)
    task = Prompts(path=args.prompts, stop=STOP)
    examples = task.load()[: args.limit]
    jobs = {
        heat: Bench(
            pair.target,
            pair.models,
            task,
            examples,
            {},
            args.max_new,
            sampling=Sampling(seed=args.seed, temperature=heat),
        )
        for heat in args.temperatures
    }
    trials = [t for name in args.decoders for t in draw(name, args.trials, args.seed)]
    report(args, best(trials, examples, args.first, jobs, config["decoder"], pair))


def best(
    trials: list[Trial],
    examples: list[Example],
    first: int,
    jobs: Mapping[float, Bench],
    configs: Mapping,
    pair: Pair,
) -> list[Trial]:
    """Try all on the first examples and each decoder's best third on the rest; return these."""
    measure(trials, [WARM_UP], jobs, configs, pair)
    for trial in trials:
        trial.samples.clear()
    measure(trials, examples[:first], jobs, configs, pair)
    finalists = []
    for name in dict.fromkeys(trial.decoder for trial in trials):
        own = sorted((t for t in trials if t.decoder == name), key=lambda t: -t.tokens_per_s)
        finalists += own[: max(1, len(own) // 3)]
    measure(finalists, examples[first:], jobs, configs, pair)
    return finalists


def configured(args: argparse.Namespace) -> dict:
    """Return the resolved config with the decoders that are tuned."""
    with initialize_config_dir(CONF, version_base="1.3"):
        decoders = f"decoder=[{','.join(args.decoders)}]"
        composed = compose("config", [decoders, *args.overrides])
    config = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(config, dict)
    return config


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", default=str(Path(CONF, "task", "development.jsonl")))
    parser.add_argument("--results", type=Path, default=Path("results/local/tuning"))
    parser.add_argument("--decoders", nargs="*", default=list(SPACES))
    parser.add_argument("--trials", type=int, default=24, help="for each decoder")
    parser.add_argument("--first", type=int, default=4, help="prompts of the first round")
    parser.add_argument("--limit", type=int, help="prompts in all; default: every one")
    parser.add_argument("--max-new", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--overrides", nargs="*", default=[], help="Hydra overrides, e.g. model=hf")
    return parser.parse_args()


def every(trial: Trial) -> list[Sample]:
    """All samples of a trial."""
    return [sample for found in trial.samples.values() for sample in found]


def report(args: argparse.Namespace, finalists: list[Trial]) -> None:
    """Write and print the finalists, the best first."""
    rows = [
        {
            "decoder": t.decoder,
            "tokens_per_s": round(t.tokens_per_s, 2),
            **{f"tokens_per_s_t{heat:g}": round(rate, 2) for heat, rate in t.rates.items()},
            "failed": sum(s.error is not None for s in every(t)),
            "repetition_rate": round(mean_repetition_rate(every(t)) or 0.0, 3),
            "settings": t.settings,
        }
        for t in sorted(finalists, key=lambda t: (t.decoder, -t.tokens_per_s))
    ]
    args.results.mkdir(parents=True, exist_ok=True)
    facts = {
        "trials_each": args.trials,
        "prompts": [Path(args.prompts).name, len(next(iter(finalists[0].samples.values())))],
        "temperatures": args.temperatures,
        "max_new": args.max_new,
        "provenance": provenance(),
        "finalists": rows,
    }
    (args.results / "tuning.json").write_text(json.dumps(facts, indent=1))
    table = pd.DataFrame(rows).groupby("decoder").head(3).to_markdown(index=False)
    (args.results / "tuning.md").write_text(
        f"# Tuning on development text, {args.trials} trials for each decoder\n\n{table}\n"
    )
    print(table)
    print(json.dumps({row["decoder"]: row["settings"] for row in reversed(rows)}))
