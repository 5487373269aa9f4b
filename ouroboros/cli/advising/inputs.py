"""What advice rests on: texts, counts, how the target errs, and what calls cost.

Either a short run here, of a pair that is loaded, or a results folder of any machine, with which no
target is loaded and, for counts alone, no model at all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.imitation import Rates, rates_of
from ouroboros.bench.replay.recording import RecordedRuns, Recording
from ouroboros.bench.run.costs import load_costs, recorded_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.loop import WARM_UP, Bench, eos_ids
from ouroboros.bench.run.pair import Pair, fast_dtype, load_tokenizer, model_path
from ouroboros.bench.run.prompts import longest, prompt_ids
from ouroboros.bench.run.recorder import Recorder
from ouroboros.cli.advising.search import Imitated
from ouroboros.cli.build import build_pair, build_sampling, build_spec, build_task
from ouroboros.cli.tapes import given_rates, load_tapes, loaded_draft
from ouroboros.cli.timing import measured_costs
from ouroboros.costs import Costs
from ouroboros.decoders import decoder_factories, needs_draft
from ouroboros.tuning.memory import config_of, footprint_of

CALLS = 3  # timed ones of each size at each visit


@dataclass
class Evidence:
    """`live` are samples that were timed under these very costs, by decoder; {} where none were."""

    source: Imitated
    costs: Costs
    rates: Mapping[str, Rates] = field(default_factory=dict)
    live: Mapping[str, Sequence[Sample]] = field(default_factory=dict)


def run_here(config: dict) -> Evidence:
    """Load the pair, run the decoders on a few prompts and time both models' calls."""
    task, examples = build_task(config["task"])
    pair = build_pair(config)
    costs = given_costs(config)
    told = costs or _measured(config, pair, longest(pair.target.tokenizer, examples))
    makers = decoder_factories(config["decoder"], pair.draft, told, tokenizer=pair.target.tokenizer)
    sampling = build_sampling(config)
    job = Bench(
        pair.target, pair.models, task, examples, makers, config["max_new"], sampling=sampling
    )
    live, runs = _watched(job)
    rates = rates_by_decoder(config) or {n: own for n in runs if (own := rates_of(runs[n]))}
    source = Imitated(_tape(job, runs[PLAIN]), pair.draft, config["decoder"], rates, told)
    if costs is not None:
        return Evidence(source, costs, rates)
    return Evidence(source, _with_runs(told, live), rates, live)


def from_folder(config: dict, *, task: dict | None) -> Evidence:
    """Take texts and counts from the results folder `runs`; its costs too, where none are given.

    Raises `ValueError` where there are no costs.
    """
    folder = ResultsFolder(config["runs"])
    source = source_of(config, folder, task=task)
    costs = given_costs(config)
    if costs is not None:
        return Evidence(source, costs, source.rates)
    own = load_costs(folder.path)
    assert own is not None
    samples = [sample for sample in folder.load_samples() if not sample.error]
    live: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        live[sample.decoder].append(sample)
    return Evidence(source, own, source.rates, live)


def source_of(config: dict, folder: ResultsFolder, *, task: dict | None) -> Imitated:
    """Return the counts of any decoder, imitated on greedy's texts of a results folder, with the
    draft model if a decoder needs one.

    `task` is needed where the run's own cannot be made.
    """
    names = [PLAIN, *folder.load_run()["decoders"]]
    tokenizer = load_tokenizer(build_spec(config["model"]))
    tapes = load_tapes(folder.path, names, tokenizer, task=task)
    tape, draft = tapes[PLAIN], None
    if any(map(needs_draft, config["decoder"].values())):
        draft = loaded_draft(config["model"], tape, tokenizer)
    rates = rates_by_decoder(config) or {n: own for n in tapes if (own := rates_of(tapes[n].runs))}
    told = given_costs(config) or recorded_costs(folder)
    return Imitated(tape, draft, config["decoder"], rates, told)


def rates_by_decoder(config: dict) -> dict[str, Rates]:
    """Return `rates`: of an advice.json, or two shares for every decoder; {} where none are given.

    Raises `ValueError` for anything else.
    """
    given = config["rates"]
    if given is None:
        return {}
    try:
        if isinstance(given, str):
            found = json.loads(Path(given).read_text(encoding="utf-8"))["rates"]
            return {name: Rates(**own) for name, own in found.items()}
        rates = given_rates(given)
        return {"": rates} if rates else {}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"rates={given}: give two shares, as rates=[0.7,0.04], or an advice.json"
        ) from error


def given_costs(config: dict) -> Costs | None:
    """Return the costs of a file or folder, or those of a machine given by its bandwidth."""
    machine = config["machine"]
    if config["costs"] and machine["bandwidth_gb_s"]:
        raise ValueError("give costs= or machine.bandwidth_gb_s=, not both")
    if not machine["bandwidth_gb_s"]:
        return load_costs(config["costs"])
    pair = {role: footprint_of(config_of(name), dtype) for role, name, dtype in shapes(config)}
    figures = {name: machine[name] for name in ("bandwidth_gb_s", "tflops", "host_ms")}
    return Costs.roofline(pair["target"], pair.get("draft"), **figures)


def shapes(config: dict) -> list[tuple]:
    """Return (role, shape or model, dtype) of the pair: the machine's shapes, else the model's."""
    spec = build_spec(config["model"])
    own: Mapping[str, str | None] = spec.standin or {"target": spec.target, "draft": spec.draft}
    device = spec.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = fast_dtype(device) if spec.dtype == "auto" else getattr(torch, spec.dtype)
    names = config["machine"]["shapes"] or own
    return [(role, model_path(name), dtype) for role, name in names.items() if name]


def _watched(job: Bench) -> tuple[dict[str, list[Sample]], dict[str, list[Recording]]]:
    """Run every decoder on every prompt, in turn, what the target predicts off the text noted."""
    decoders = {name: make() for name, make in job.decoders.items()}
    for decoder in decoders.values():
        replace(job, max_new=min(job.max_new, 32)).measure(decoder, WARM_UP, 0)
    live: dict[str, list[Sample]] = {name: [] for name in decoders}
    runs: dict[str, list[Recording]] = {name: [] for name in decoders}
    for example, name, _, order in tqdm(list(job.turns()), desc="runs", unit="sample", leave=False):
        reads = getattr(decoders[name], "reads_rejected", False)
        decoder = Recorder(decoders[name]) if reads else decoders[name]  # type: ignore[arg-type]
        sample = replace(job.measure(decoder, example, 0), decoder=name, order=order)
        if sample.error:
            raise ValueError(f"{name} failed on {example.id}: {sample.error}")
        prompt = tuple(prompt_ids(job.target.tokenizer, example))
        known = decoder.predictions(sample.new_tokens) if isinstance(decoder, Recorder) else {}
        runs[name].append(Recording(example.id, prompt, sample.new_tokens, sample.finish, 0, known))
        live[name].append(sample)
    return live, runs


def _tape(job: Bench, runs: Sequence[Recording]) -> RecordedRuns:
    target = job.target
    return RecordedRuns(
        runs, job.sampling, job.max_new, target.max_len, target.vocab_size, eos_ids(target)
    )


def _measured(config: dict, pair: Pair, prompt_tokens: int) -> Costs:
    """Time both models' calls, on prompts of up to so many tokens and what follows."""
    reach = min(model.max_len for model in pair.models) - max(config["nodes"])
    reach = max(1, min(prompt_tokens + config["max_new"], reach))
    sizes = {name: config[name] for name in ("nodes", "visits")}
    contexts = [max(1, reach // 2), reach]
    return measured_costs(pair, {**sizes, "contexts": contexts, "calls": CALLS, "padded": False})


def _with_runs(costs: Costs, live: Mapping[str, Sequence[Sample]]) -> Costs:
    """Return the costs with the host's time and the prefill of timed runs."""
    steps = {
        name: [s for one in own for s in one.steps[1:] if s.scored] for name, own in live.items()
    }
    host = {
        name: float(np.median([1e3 * s.host_s for s in own])) for name, own in steps.items() if own
    }
    first = float(np.median([1e3 * sample.steps[0].verify_s for sample in live[PLAIN]]))
    shortest = min(costs.target.ms)
    return replace(
        costs,
        host_ms={**host, "": float(np.median(list(host.values())))},
        prefill_ms=max(0.0, first - costs.target.call_ms(1, shortest)),
    )
