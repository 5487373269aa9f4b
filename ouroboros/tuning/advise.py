"""Which decoder, with which settings, here? Predictions for settings that were not run.

The loop itself replays every decoder on recorded texts, and the costs of a machine turn its counts
into seconds. Texts and costs are the `Evidence`: from a short run here (`measure_evidence`), or
from a results folder of any machine (`recorded_evidence`), for which no target is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns, runs_of
from ouroboros.bench.replay.replay import USUAL_RATES, OffTextRates, check_drafter, replay
from ouroboros.bench.run.loop import WARM_UP, Bench, eos_ids
from ouroboros.bench.run.prompts import longest, prompt_ids
from ouroboros.bench.run.recorder import Recorder
from ouroboros.costs import Costs
from ouroboros.decode import DrafterCapabilities, RootOnly
from ouroboros.decoders import make_decoder, wants_costs
from ouroboros.engine.model import CachedModel
from ouroboros.tuning.break_even import why_slower
from ouroboros.tuning.predict import Prediction, predict
from ouroboros.tuning.search import SPACES, Settings, Space, search

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # tree sizes to be timed
CALLS = 3  # timed calls of each size at each visit
WARM_UP_TOKENS = 32


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
            drafter = RootOnly()
            if name != PLAIN:
                drafter = make_decoder(config, self.draft, costs=costs, **settings)
            rates = self._rates(name, config)
            check_drafter(drafter, self.recorded, rates=rates)
            self.counted[key] = replay(self.recorded, drafter, name=name, rates=rates)
        return self.counted[key]

    def predicted(self, name: str, config: Mapping, settings: Settings) -> Prediction:
        """Return the prediction for a decoder at settings; its `failed` is the reason for none."""
        try:
            plain, counts = self.counts(PLAIN, {}, {}), self.counts(name, config, settings)
        except ValueError as error:
            return Prediction(dict(settings), failed=str(error))
        return predict(plain, counts, self.costs, settings=settings)

    def _rates(self, name: str, config: Mapping) -> OffTextRates | None:
        if self.rates is None:
            return None
        keys = (name, kind_of(config), "")
        return next((self.rates[key] for key in keys if key in self.rates), USUAL_RATES)


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
        """Return one row per prediction; cells that are not known are empty."""
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
    on_try: Callable[[], object] = lambda: None,
) -> Advice:
    """Predict greedy and each decoder (configs by name) as configured and at its best settings.

    The best settings are those of one round of `search` over the decoder's space. `on_try` is
    called after each prediction. Decoders that cannot be predicted have a `Prediction.failed`.
    """
    decoders = {PLAIN: {}} | dict(decoders)
    found: dict[str, dict[str, Prediction]] = {}
    why, tried = [], 0
    for name, config in decoders.items():
        known: dict[str, Prediction] = {}

        def rate(settings: dict, name=name, config=config, known=known) -> float:
            """Return the predicted tokens per second, 0 where nothing is predicted."""
            key = json.dumps(settings)
            if key not in known:
                known[key] = evidence.predicted(name, config, settings)
                on_try()
            return known[key].tokens_per_s

        rate({})
        start = known["{}"]
        found[name] = {"configured": start}
        if search_settings and not start.failed:
            best = search(rate, space_of(config), configured=config, rounds=1)
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


def space_of(config: Mapping) -> Space:
    """Return the settings that are searched for a decoder, by its class."""
    return SPACES.get(kind_of(config), {})


def recorded_evidence(
    recording: Mapping[str, RecordedRuns],
    costs: Costs,
    *,
    draft: CachedModel | None = None,
    decision_costs: Costs | None = None,
    rates: Mapping[str, OffTextRates] | None = None,
    live: Mapping[str, Sequence[Sample]] | None = None,
) -> Evidence:
    """Return the evidence of a recording: greedy's texts, and off-text rates of each decoder whose
    predictions were recorded, where no `rates` are given."""
    measured = {name: OffTextRates.measured(own.runs) for name, own in recording.items()}
    own_rates = rates or {name: one for name, one in measured.items() if one}
    return Evidence(runs_of(recording, PLAIN), costs, draft, decision_costs, own_rates, live or {})


def measure_evidence(
    bench: Bench,
    draft: CachedModel | None,
    costs: Costs | None = None,
    *,
    rates: Mapping[str, OffTextRates] | None = None,
) -> Evidence:
    """Run the decoders of a bench on its prompts and return the evidence.

    Decoders decide by `bench.costs`. Predictions go by `costs`; without them by `bench.costs` with
    the host's time per step and the prefill of this run. Raises `ValueError` for a decoder that
    fails.
    """
    assert bench.costs is not None
    decoders = {name: make() for name, make in bench.decoders.items()}
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
        prompt = tuple(prompt_ids(bench.target.tokenizer, example))
        off = decoder.predictions(sample.new_tokens) if isinstance(decoder, Recorder) else {}
        runs[name].append(RecordedRun(example.id, prompt, sample.new_tokens, sample.finish, 0, off))
        live[name].append(sample)
    target = bench.target
    limits = bench.sampling, bench.max_new, target.max_len, target.vocab_size, eos_ids(target)
    recording = {name: RecordedRuns(own, *limits) for name, own in runs.items()}
    options = {"draft": draft, "decision_costs": bench.costs, "rates": rates}
    if costs is not None:
        return recorded_evidence(recording, costs, **options)
    return recorded_evidence(recording, with_host_time(bench.costs, live), live=live, **options)


def with_host_time(costs: Costs, live: Mapping[str, Sequence[Sample]]) -> Costs:
    """Return the costs with the host's milliseconds per step (medians, by decoder) and the prefill
    of timed runs, greedy's among them."""
    steps = {
        name: [1e3 * step.host_s for one in own for step in one.steps[1:] if step.scored]
        for name, own in live.items()
    }
    host = {name: float(np.median(own)) for name, own in steps.items() if own}
    first = float(np.median([1e3 * sample.steps[0].verify_s for sample in live[PLAIN]]))
    return replace(
        costs,
        host_ms={**host, "": float(np.median(list(host.values())))},
        prefill_ms=max(0.0, first - costs.target.call_ms(1, min(costs.target.ms))),
    )


def timed_sizes(bench: Bench, nodes: Sequence[int] = NODES) -> dict:
    """Return the tree sizes and contexts at which the calls of a bench's models are to be timed:
    contexts half way and up to the longest prompt with its new tokens."""
    reach = min(model.max_len for model in bench.models) - max(nodes)
    prompt = longest(bench.target.tokenizer, bench.examples)
    reach = max(1, min(prompt + bench.max_new, reach))
    return {"nodes": list(nodes), "contexts": [max(1, reach // 2), reach]}
