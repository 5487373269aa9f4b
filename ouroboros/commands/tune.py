"""Tune every decoder on development text, each with the same number of trials: `ouroboros tune`.

What can be typed, and how it is done, stands in `ouroboros.commands.arguments`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import torch
from omegaconf import OmegaConf
from scipy.stats import gmean
from tqdm import tqdm

from ouroboros.bench.measure.intervals import pooled
from ouroboros.bench.measure.metrics import mean_repetition_rate, output_throughput
from ouroboros.bench.measure.predicted import cost_part
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.loop import WARM_UP, Bench
from ouroboros.bench.run.prompt import longest
from ouroboros.bench.run.provenance import provenance
from ouroboros.bench.run.sampling import Sampling
from ouroboros.bench.run.turn import Decoder
from ouroboros.bench.tasks.humaneval import STOP
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.bench.tasks.task import Example
from ouroboros.commands import place
from ouroboros.commands.build import build_pair, check_decoders, make_decoder
from ouroboros.commands.configs import SPACES, composed, replaced
from ouroboros.commands.fitting import fit
from ouroboros.costs.probe import probe
from ouroboros.costs.surface import Costs
from ouroboros.engine.model import CachedModel


@dataclass
class Trial:
    """One setting of one decoder and what it measured."""

    decoder: str
    settings: dict
    samples: dict[float, list[Sample]] = field(default_factory=dict)  # by temperature

    @property
    def name(self) -> str:
        return f"{self.decoder} {json.dumps(self.settings, sort_keys=True)}"

    def rates(self, costs: Costs) -> dict[float, float]:
        """Return the speed at each temperature: tokens per target call of one node, by the costs;
        tokens per second where an engine does not say what it scored."""
        return {heat: speed(found, costs) for heat, found in self.samples.items()}

    def rate(self, costs: Costs) -> float:
        """Return the geometric mean over temperatures: each counts alike, however slow its text
        is."""
        return float(gmean(list(self.rates(costs).values())))


def speed(samples: list[Sample], costs: Costs) -> float:
    """Return tokens per cost, or per second, of the samples that did not fail; 0 for none."""
    done = [sample for sample in samples if sample.error is None]
    try:
        spent = pooled(done, part=cost_part(costs))
    except ValueError:
        return output_throughput(done) or 0.0
    return 1 / spent.value if spent and spent.value else 0.0


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


@dataclass
class Search:
    """What trials are made of: the configs by decoder, the draft, the pair's costs, a job by
    temperature."""

    configs: Mapping[str, dict]
    draft: CachedModel | None
    costs: Costs
    jobs: Mapping[float, Bench]

    def measure(self, trials: list[Trial], examples: list[Example]) -> None:
        """Run every trial on every example at every temperature, in turn; they keep the samples."""
        decoders = {id(trial): self.made(trial) for trial in trials}
        for at, example in enumerate(tqdm(examples, desc=f"{len(trials)} trials", unit="prompt")):
            first = at % len(trials)
            for trial in [*trials[first:], *trials[:first]]:
                for heat, job in self.jobs.items():
                    sample = job.measure(decoders[id(trial)], example, 0)
                    trial.samples.setdefault(heat, []).append(sample)

    def made(self, trial: Trial) -> Decoder:
        """Return a decoder at a trial's settings."""
        own = replaced(self.configs[trial.decoder], trial.settings)
        return make_decoder(own, self.draft, self.costs, what=f"decoder.{trial.decoder}")

    def settings(self, trial: Trial) -> dict:
        """Return the value of each option that is tuned, where the trial leaves it as configured
        too; an option of which neither says anything has its class's default and is left out."""
        own = OmegaConf.create(replaced(self.configs[trial.decoder], trial.settings))
        found = {key: OmegaConf.select(own, key) for key in SPACES[trial.decoder]}
        return {key: value for key, value in found.items() if value is not None}


def tune(args: argparse.Namespace) -> int:
    """Load, try all trials of all decoders, report the best, or fit; return 0."""
    if args.fit:
        return fit(args)
    unknown = [name for name in args.decoders if name not in SPACES]
    if unknown:
        known = ", ".join(SPACES)
        raise ValueError(f"nothing to tune of {', '.join(unknown)}: conf/tune has {known}")
    config = composed([f"decoder=[{','.join(args.decoders)}]", *args.overrides])
    check_decoders(config["decoder"])
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    tasks = [Prompts(path=path, stop=STOP) for path in args.prompts]
    task, examples = tasks[0], [one for own in tasks for one in own.load()[: args.limit]]
    pair = build_pair(config)
    reach = longest(pair.target.tokenizer, examples) + args.max_new
    costs = load_costs(config["costs"]) or probe(pair.target, pair.draft, context=reach)
    job = Bench(pair.target, pair.models, task, examples, {}, args.max_new)
    jobs = {
        heat: replace(job, sampling=Sampling(seed=args.seed, temperature=heat))
        for heat in args.temperatures
    }
    trials = [t for name in args.decoders for t in draw(name, args.trials, args.seed)]
    search = Search(config["decoder"], pair.draft, costs, jobs)
    report(args, best(trials, examples, args.first, search), search)
    return 0


def best(trials: list[Trial], examples: list[Example], first: int, search: Search) -> list[Trial]:
    """Try all on the first examples and each decoder's best third on the rest; return these."""
    search.measure(trials, [WARM_UP])
    for trial in trials:
        trial.samples.clear()
    search.measure(trials, examples[:first])
    finalists = []
    for name in dict.fromkeys(trial.decoder for trial in trials):
        own = sorted((t for t in trials if t.decoder == name), key=lambda t: -t.rate(search.costs))
        finalists += own[: max(1, len(own) // 3)]
    search.measure(finalists, examples[first:])
    return finalists


def every(trial: Trial) -> list[Sample]:
    """All samples of a trial."""
    return [sample for found in trial.samples.values() for sample in found]


def report(args: argparse.Namespace, finalists: list[Trial], search: Search) -> None:
    """Write and print the finalists, the best first."""
    costs = search.costs
    ranked = sorted(finalists, key=lambda trial: (trial.decoder, -trial.rate(costs)))
    rows = [
        {
            "decoder": t.decoder,
            "speed": round(t.rate(costs), 3),
            **{f"speed_t{heat:g}": round(rate, 3) for heat, rate in t.rates(costs).items()},
            "failed": sum(s.error is not None for s in every(t)),
            "repetition_rate": round(mean_repetition_rate(every(t)) or 0.0, 3),
            "settings": search.settings(t),
        }
        for t in ranked
    ]
    args.results.mkdir(parents=True, exist_ok=True)
    facts = {
        "trials_each": args.trials,
        "prompts": [Path(path).name for path in args.prompts],
        "prompts_decoded": len(next(iter(finalists[0].samples.values()))),
        "costs": dict(costs.about),
        "temperatures": args.temperatures,
        "max_new": args.max_new,
        "provenance": provenance(),
        "finalists": rows,
    }
    (args.results / "tuning.json").write_text(json.dumps(facts, indent=1))
    table = pd.DataFrame(rows).groupby("decoder").head(3).to_markdown(index=False)
    (args.results / "tuning.md").write_text(
        f"# Tuning on development text, {args.trials} trials for each decoder\n\n"
        "Speed: tokens per target call of one node, by counts and costs (tokens per second of "
        f"transformers' own decoders).\n\n{table}\n"
    )
    print(f"results: {place(args.results)}", file=sys.stderr)
    print(table)
    print(json.dumps({row["decoder"]: row["settings"] for row in reversed(rows)}))
