"""Which decoder, with which settings, here? Predictions for settings that were not run.

The loop itself replays every decoder on recorded texts, and the costs of a machine turn its counts
into seconds. Texts and costs are the `Evidence`: from a short run here (`measured_evidence`), or
from a results folder of any machine (`recorded_evidence`), for which no target is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from tqdm import tqdm

from ouroboros import vocab
from ouroboros.bench.metrics.intervals import Interval, speedup
from ouroboros.bench.metrics.metrics import METRICS, phase_shares
from ouroboros.bench.metrics.sample import PLAIN, Sample, steps_of
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns, read_recording, runs_of
from ouroboros.bench.replay.replay import (
    USUAL_RATES,
    OffTextRates,
    RecordedTarget,
    check_drafter,
    replay,
)
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.loop import WARM_UP, Bench, eos_ids
from ouroboros.bench.run.pair import PairSpec, load_draft, load_tokenizer
from ouroboros.bench.run.prompts import longest, prompt_ids
from ouroboros.bench.run.recorder import Recorder
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.costs import UNTIMED, CostModel, Costs
from ouroboros.decode import Drafter, DrafterCapabilities, RootOnly
from ouroboros.decoders import decoder_factories, make_decoder, needs_draft, wants_costs
from ouroboros.engine.model import CachedModel
from ouroboros.tuning.break_even import why_slower
from ouroboros.tuning.search import SPACES, Settings, search

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # tree sizes to be timed
CALLS = 3  # timed calls of each size at each visit
WARM_UP_TOKENS = 32


@dataclass(frozen=True)
class Prediction:
    """What a decoder is expected to do at some settings.

    `cost_per_token` is in target calls of one node (greedy: 1); `shares` are of the time after the
    first step: "draft", "verify", "host". `samples` and `plain` (greedy's) have predicted seconds.
    `failed` is the reason why nothing is predicted; there are no figures then.
    """

    settings: Mapping[str, object]
    tokens_per_s: float = 0.0
    speedup: Interval | None = None
    cost_per_token: float = 0.0
    tokens_per_step: float = 0.0
    shares: Mapping[str, float] | None = None
    failed: str | None = None
    plain: Sequence[Sample] = field(default=(), repr=False)
    samples: Sequence[Sample] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        plain: Sequence[Sample],
        samples: Sequence[Sample],
        costs: Costs,
        settings: Settings | None = None,
    ) -> Prediction:
        """Predict a decoder's samples against plain decoding's of the same prompts.

        `failed` says so if the costs do not cover the samples' calls.
        """
        settings, model = dict(settings or {}), CostModel(costs)
        try:
            ours, base = ([model.predict(sample) for sample in of] for of in (samples, plain))
            cost = cost_per_token(samples, model)
        except ValueError as error:
            return cls(settings, failed=str(error))
        later = [step for sample in ours for step in sample.steps[1:]]
        return cls(
            settings,
            METRICS["output_throughput"](ours) or 0.0,
            speedup(base, ours),
            cost or 0.0,
            METRICS["tokens_per_target_call"](ours) or 0.0,
            {name: share or 0.0 for name, share in phase_shares(later or steps_of(ours)).items()},
            plain=base,
            samples=ours,
        )

    def to_dict(self) -> dict:
        """Return JSON values, without the samples."""
        found = asdict(replace(self, plain=(), samples=()))
        return {key: value for key, value in found.items() if key not in ("plain", "samples")}


def cost_per_token(samples: Sequence[Sample], model: CostModel) -> float | None:
    """Return the cost of a token in target calls of one node: sum of costs / sum of tokens.

    None without tokens. Raises `ValueError` for calls that the costs do not cover.
    """
    parts = [model.cost(sample) for sample in samples]
    tokens = sum(count for _, count in parts)
    return sum(spent for spent, _ in parts) / tokens if tokens else None


@dataclass
class Evidence:
    """What predictions rest on: greedy's texts and a machine's costs.

    `decision_costs` are those by which decoders decide that take costs (default: `costs`). `rates`
    simulate predictions off the text, by name or kind of decoder, "" for any; None: decoders that
    read such predictions are refused. `live` are samples timed under these very costs, by decoder.
    """

    recorded: RecordedRuns
    costs: Costs
    draft: CachedModel | None = None
    decision_costs: Costs | None = None
    rates: Mapping[str, OffTextRates] | None = field(default_factory=dict)
    live: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    counted: dict[str, list[Sample]] = field(default_factory=dict, repr=False)
    """Samples by decoder, settings and the costs it decides by: replayed once."""

    def counts(self, name: str, config: Mapping, settings: Settings) -> list[Sample]:
        """Return a decoder's sample on each text, without seconds; `config` is ignored for greedy.

        Raises `ValueError` for settings and decoders that cannot be replayed.
        """
        costs = self.decision_costs or self.costs
        key = f"{name} {sorted(settings.items())}"
        if name != PLAIN and wants_costs(config):
            key += f" {costs}"
        if key not in self.counted:
            drafter: Drafter = RootOnly()
            rates = None
            if name != PLAIN:
                made = make_decoder(config, self.draft, costs=costs, **settings)
                drafter = cast(Drafter, made)  # checked below
            if self.rates is not None:
                keys = (name, kind_of(config), "")
                rates = next((self.rates[key] for key in keys if key in self.rates), USUAL_RATES)
            check_drafter(drafter, self.recorded, rates=rates)
            self.counted[key] = replay(self.recorded, drafter, name=name, rates=rates)
        return self.counted[key]

    def predicted(self, name: str, config: Mapping, settings: Settings) -> Prediction:
        """Return the prediction for a decoder at settings; its `failed` is the reason for none."""
        try:
            plain, counts = self.counts(PLAIN, {}, {}), self.counts(name, config, settings)
        except ValueError as error:
            return Prediction(dict(settings), failed=str(error))
        return Prediction.of(plain, counts, self.costs, settings)


@dataclass(frozen=True)
class Advice:
    """Predictions of each decoder, "configured" and, where other settings are faster, "best"; why
    decoders are slow or not predicted, a line each; the number of settings tried."""

    evidence: Evidence
    predictions: Mapping[str, Mapping[str, Prediction]]
    why: Sequence[str]
    tried: int

    @property
    def best(self) -> tuple[str, Prediction]:
        """The fastest decoder, with its prediction at its best settings."""
        top = {name: own.get("best", own["configured"]) for name, own in self.predictions.items()}
        return max(top.items(), key=lambda pair: pair[1].tokens_per_s)

    def table(self) -> pd.DataFrame:
        """Return one row per prediction; unknown cells are empty."""
        rows, live = [], self.evidence.live
        for name, kinds in self.predictions.items():
            for kind, one in kinds.items():
                timed = live.get(name) if kind == "configured" else None
                measured = speedup(live[PLAIN], timed) if timed else None
                words = ", ".join(f"{key} {value}" for key, value in one.settings.items())
                shares = (one.shares or {}).values()
                rows.append(
                    {
                        "decoder": name,
                        "settings": words or kind,
                        "tokens/s": one.tokens_per_s or None,
                        "speedup": one.speedup and one.speedup.text(unit="x"),
                        "measured": measured and measured.text(unit="x"),
                        "cost/token": one.cost_per_token or None,
                        "draft/verify/host %": "/".join(f"{100 * s:.0f}" for s in shares) or None,
                    }
                )
        return pd.DataFrame(rows)


def advise(
    evidence: Evidence,
    decoders: Mapping[str, Mapping],
    *,
    search_settings: bool = True,
    progress: bool = False,
) -> Advice:
    """Predict greedy and each decoder (configs by name) as configured and at its best settings.

    The best settings are those of one round of `search` over the decoder's space. Decoders that
    cannot be predicted have a `Prediction.failed`.
    """
    found: dict[str, dict[str, Prediction]] = {}
    why, tried = [], 0
    with tqdm(desc="settings", leave=False, disable=not progress) as bar:
        for name, config in {PLAIN: {}, **decoders}.items():
            known: dict[str, Prediction] = {}

            def rate(settings: dict, name=name, config=config, known=known) -> float:
                """Return the predicted tokens per second, 0 where nothing is predicted."""
                key = json.dumps(settings)
                if key not in known:
                    known[key] = evidence.predicted(name, config, settings)
                    bar.update()
                return known[key].tokens_per_s

            rate({})
            start = known["{}"]
            found[name] = {"configured": start}
            if search_settings and not start.failed:
                space = SPACES.get(kind_of(config), {})
                best = search(rate, space, configured=config, rounds=1)
                if best:
                    found[name]["best"] = known[json.dumps(best)]
            tried += len(known)
            if start.failed:
                why.append(f"{name} is not predicted: {start.failed}")
    for name, kinds in found.items():
        start = kinds["configured"]
        line = why_slower(name, start.plain, start.samples) if start.samples else None
        if line is None and evidence.live.get(name) and PLAIN in evidence.live:
            line = why_slower(name, evidence.live[PLAIN], evidence.live[name])
        why += [line] if line else []
    return Advice(evidence, found, why, tried)


def kind_of(config: Mapping) -> str:
    """Return the name of a decoder's class as in conf/decoder, "" without a class.

    >>> kind_of({"_target_": "ouroboros.baselines.PromptLookup"})
    'prompt_lookup'
    """
    name = config.get("_target_", "").rpartition(".")[2]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def recorded_evidence(
    path: Path | str,
    spec: PairSpec,
    decoders: Mapping[str, Mapping],
    *,
    costs: Costs | None = None,
    rates: Mapping[str, OffTextRates] | None = None,
    task: TaskSpec | None = None,
    timing: bool = True,
) -> Evidence:
    """Return the evidence of a results folder: greedy's texts; the run's own `costs` and off-text
    `rates` where none are given.

    Of the pair only the draft is loaded, if `decoders` (configs by name) need it. Without `timing`
    the costs are those by which the run's decoders decided.
    """
    folder, tokenizer = ResultsFolder(path), load_tokenizer(spec)
    recording = read_recording(path, tokenizer, task=task)
    recorded, decision_costs = runs_of(recording, PLAIN), costs or folder.load_costs()
    live: dict[str, list[Sample]] = {}
    for sample in folder.load_samples() if costs is None else ():
        if not sample.error:
            live.setdefault(sample.decoder, []).append(sample)
    if costs is None:
        costs = load_costs(path) if timing else decision_costs or Costs.load(UNTIMED)
    assert costs is not None
    draft = None
    if any(map(needs_draft, decoders.values())):
        draft = load_draft(spec)
        vocab.check_pair(RecordedTarget(recorded, tokenizer=tokenizer), draft)  # type: ignore[arg-type]
    rates = rates or _measured_rates(recording)
    return Evidence(recorded, costs, draft, decision_costs, rates, live)


def measured_evidence(
    bench: Bench,
    configs: Mapping[str, Mapping],
    *,
    costs: Costs | None = None,
    rates: Mapping[str, OffTextRates] | None = None,
    nodes: Sequence[int] = NODES,
    visits: int = 3,
) -> Evidence:
    """Run decoders (configs by name) on a bench's prompts and return the evidence.

    Without `costs`, both models' calls are timed here: trees of so many `nodes`, in `visits`
    rounds; the host's time per step and the prefill are those of the run. Raises `ValueError` for a
    decoder that fails.
    """
    target, tokenizer = bench.target, bench.target.tokenizer
    draft = bench.models[1] if len(bench.models) > 1 else None
    timed = costs
    if timed is None:
        reach = min(model.max_len for model in bench.models) - max(nodes)
        reach = max(1, min(longest(tokenizer, bench.examples) + bench.max_new, reach))
        grid = {"nodes": nodes, "contexts": [max(1, reach // 2), reach], "visits": visits}
        with tqdm(total=2 * visits, desc="calls", unit="visit", leave=False) as bar:
            timed = Costs.measure_grid(bench.models, **grid, repeats=CALLS, on_visit=bar.update)
    makers = decoder_factories(configs, draft, timed, tokenizer=tokenizer)
    bench = replace(bench, costs=timed, decoders=makers)
    decoders = {name: make() for name, make in makers.items()}
    short = replace(bench, max_new=min(bench.max_new, WARM_UP_TOKENS))
    for decoder in decoders.values():
        short.measure(decoder, WARM_UP, 0)
    live: dict[str, list[Sample]] = {name: [] for name in decoders}
    runs: dict[str, list[RecordedRun]] = {name: [] for name in decoders}
    turns = list(bench.turns())
    for example, name, _, order in tqdm(turns, desc="runs", unit="sample", leave=False):
        reads = DrafterCapabilities.of(decoders[name]).reads_rejected
        decoder = Recorder(decoders[name]) if reads else decoders[name]  # type: ignore[arg-type]
        sample = replace(bench.measure(decoder, example, 0), decoder=name, order=order)
        if sample.error:
            raise ValueError(f"{name} failed on {example.id}: {sample.error}")
        prompt = tuple(prompt_ids(tokenizer, example))
        off = decoder.predictions(sample.new_tokens) if isinstance(decoder, Recorder) else {}
        runs[name].append(RecordedRun(example.id, prompt, sample.new_tokens, sample.finish, 0, off))
        live[name].append(sample)
    limits = bench.sampling, bench.max_new, target.max_len, target.vocab_size, eos_ids(target)
    recording = {name: RecordedRuns(own, *limits) for name, own in runs.items()}
    recorded, rates = runs_of(recording, PLAIN), rates or _measured_rates(recording)
    if costs is not None:
        return Evidence(recorded, costs, draft, timed, rates)
    steps = {n: [s for one in own for s in one.steps[1:] if s.scored] for n, own in live.items()}
    host = {n: 1e3 * float(np.median([s.host_s for s in own])) for n, own in steps.items() if own}
    first = 1e3 * float(np.median([sample.steps[0].verify_s for sample in live[PLAIN]]))
    costs = replace(
        timed,
        host_ms={**host, "": float(np.median(list(host.values())))},
        prefill_ms=max(0.0, first - timed.target.call_ms(1, min(timed.target.ms))),
    )
    return Evidence(recorded, costs, draft, timed, rates, live)


def _measured_rates(recording: Mapping[str, RecordedRuns]) -> dict[str, OffTextRates]:
    """Return the off-text rates of each decoder whose predictions were recorded."""
    measured = {name: OffTextRates.measured(own.runs) for name, own in recording.items()}
    return {name: one for name, one in measured.items() if one}
