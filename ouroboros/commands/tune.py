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
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy.stats import gmean
from tqdm import tqdm

from ouroboros.bench.measure.metrics import mean_repetition_rate, output_throughput
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.run.loop import WARM_UP, Bench
from ouroboros.bench.run.pair import Pair, load_pair
from ouroboros.bench.run.provenance import provenance
from ouroboros.bench.run.sampling import Sampling
from ouroboros.bench.tasks.humaneval import STOP
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.bench.tasks.task import Example
from ouroboros.commands import CONF
from ouroboros.commands.build import build_spec, wants_draft
from ouroboros.commands.refusals import CALLERS, one_line

SPACES: dict[str, dict[str, list]] = {
    path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted(Path(CONF).glob("tune/*"))
}
"""By decoder, the values of each setting that a trial may draw: conf/tune."""


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


def main() -> int:
    """Load, try, report; return 2, after one line, for what cannot be tuned."""
    try:
        tune(options())
    except CALLERS as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def tune(args: argparse.Namespace) -> None:
    """Try all trials of all decoders and report the best."""
    unknown = [name for name in args.decoders if name not in SPACES]
    if unknown:
        known = ", ".join(SPACES)
        raise ValueError(f"nothing to tune of {', '.join(unknown)}: conf/tune has {known}")
    config = configured(args)
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    wanted = wants_draft({name: config["decoder"][name] for name in args.decoders})
    pair = load_pair(build_spec(config["model"]), with_draft=wanted)
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
