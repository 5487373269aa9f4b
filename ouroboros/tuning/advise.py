"""Which decoder, with which settings, here? Predictions for settings that were not run.

The loop itself replays every decoder on recorded texts, and the costs of a machine turn its counts
into seconds. Texts and costs are the `Evidence`: from a short run here (`measured_evidence`), or
from a results folder of any machine (`recorded_evidence`), for which no target is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import Interval, speedup
from ouroboros.bench.metrics.metrics import METRICS, phase_shares
from ouroboros.bench.metrics.sample import PLAIN, Sample, sample_frame, step_frame
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns, read_recording, runs_of
from ouroboros.bench.replay.replay import USUAL_RATES, OffTextRates, replay
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.loop import Bench, eos_ids
from ouroboros.bench.run.pair import PairSpec, load_tokenizer
from ouroboros.bench.run.prompts import longest, prompt_ids
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.costs import UNTIMED, CostModel, Costs
from ouroboros.decode import RootOnly
from ouroboros.decoders import decoder_factories, make_decoder, needs_draft, wants_costs
from ouroboros.engine.model import CachedModel
from ouroboros.tuning.break_even import break_even, why_slower
from ouroboros.tuning.search import SPACES, Settings, search

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # tree sizes to be timed
SEARCHED = 4  # texts on which settings are searched
CALLS = 3  # timed calls of each size at each visit


@dataclass(frozen=True)
class Prediction:
    """What a decoder is expected to do at some settings.

    `cost_per_token` is in target calls of one node (greedy: 1); `shares` are of the time after the
    first step: "draft", "verify", "host". `acceptance` is that of a draft token and `break_even`
    the one from which on the decoder is faster than greedy (None: never). `why` says in a line why
    it is slower than greedy, `failed` why nothing is predicted.
    """

    settings: Mapping[str, object]
    tokens_per_s: float = 0.0
    speedup: Interval | None = None
    cost_per_token: float = 0.0
    tokens_per_step: float = 0.0
    shares: Mapping[str, float] | None = None
    acceptance: float = 0.0
    break_even: float | None = None
    failed: str | None = None
    why: str | None = None

    @classmethod
    def of(
        cls,
        plain: Sequence[Sample],
        samples: Sequence[Sample],
        costs: Costs,
        settings: Settings | None = None,
    ) -> Prediction:
        """Predict a decoder's samples against greedy's of the same prompts; `failed` says so if the
        costs do not cover the samples' calls."""
        settings, model = dict(settings or {}), CostModel(costs)
        try:
            ours, base = ([model.predict(sample) for sample in of] for of in (samples, plain))
            cost = cost_per_token(samples, model)
        except ValueError as error:
            return cls(settings, failed=str(error))
        needed, reached = break_even(base, ours)
        ratio, steps = speedup(sample_frame(base), sample_frame(ours)), step_frame(ours)
        later = steps[steps.number > 0] if (steps.number > 0).any() else steps
        return cls(
            settings,
            METRICS["output_throughput"](ours) or 0.0,
            ratio,
            cost or 0.0,
            METRICS["tokens_per_target_call"](ours) or 0.0,
            dict(zip(("draft", "verify", "host"), phase_shares(later).fillna(0.0), strict=True)),
            acceptance=reached,
            break_even=needed,
            why=None if ratio is None or ratio.value >= 1 else why_slower(base, ours),
        )


def cost_per_token(samples: Sequence[Sample], model: CostModel) -> float | None:
    """Return the cost of a token in target calls of one node; None without tokens.

    Raises `ValueError` for calls that the costs do not cover.
    """
    parts = [model.cost(sample) for sample in samples]
    tokens = sum(count for _, count in parts)
    return sum(spent for spent, _ in parts) / tokens if tokens else None


@dataclass
class Evidence:
    """What predictions rest on: greedy's texts and a machine's costs.

    `decision_costs` are those by which decoders decide that take costs (default: `costs`). `rates`
    simulate predictions off the text, by name or kind of decoder, "" for any; None: decoders that
    read such predictions are refused. Decoders that are refused run on `bench`, where it is given.
    `live` are samples timed under these very costs, by decoder.
    """

    recorded: RecordedRuns
    costs: Costs
    draft: CachedModel | None = None
    decision_costs: Costs | None = None
    rates: Mapping[str, OffTextRates] | None = field(default_factory=dict)
    live: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    counted: dict[str, list[Sample]] = field(default_factory=dict, repr=False)
    """Samples by decoder, settings and the costs it decides by: replayed once."""
    bench: Bench | None = None

    def key(self, name: str, config: Mapping, settings: Settings) -> str:
        """Return the key of a decoder's samples in `counted`."""
        by_costs = name != PLAIN and wants_costs(config)
        costs = (self.decision_costs or self.costs) if by_costs else ""
        return f"{name} {sorted(settings.items())} {costs}"

    def counts(self, name: str, config: Mapping, settings: Settings) -> list[Sample]:
        """Return a decoder's sample on each text, without seconds; `config` is ignored for greedy.

        Raises `ValueError` for settings that the decoder does not take and, without `bench`, for a
        decoder that cannot be replayed.
        """
        costs, key = self.decision_costs or self.costs, self.key(name, config, settings)
        if key in self.counted:
            return self.counted[key]
        rates, drafter = None, RootOnly()
        if name != PLAIN:
            drafter = make_decoder(config, self.draft, costs=costs, **settings)  # type: ignore[assignment]
        if self.rates is not None:
            keys = (name, kind_of(config), "")
            rates = next((self.rates[key] for key in keys if key in self.rates), USUAL_RATES)
        try:
            samples = replay(self.recorded, drafter, name=name, rates=rates)
        except ValueError:
            if self.bench is None:
                raise
            samples = [replace(s, decoder=name) for s in self._run(self.bench, drafter)]
        self.counted[key] = samples
        return samples

    def _run(self, bench: Bench, drafter):
        """Yield samples of a live run; an `error` says where the text is not the recorded one."""
        for run, example in zip(self.recorded.runs, bench.examples, strict=False):
            sample = bench.measure(drafter, example, 0)
            if not sample.error and tuple(sample.new_tokens) != run.new_tokens:
                sample = replace(sample, error="the text is not greedy's: is this float32?")
            yield sample

    def predicted(self, name: str, config: Mapping, settings: Settings) -> Prediction:
        """Return the prediction for a decoder at settings; its `failed` is the reason for none."""
        try:
            plain, counts = self.counts(PLAIN, {}, {}), self.counts(name, config, settings)
        except ValueError as error:
            return Prediction(dict(settings), failed=str(error))
        return Prediction.of(plain, counts, self.costs, settings)


def advise(
    evidence: Evidence,
    decoders: Mapping[str, Mapping],
    *,
    search_settings: bool = True,
    progress: bool = False,
) -> tuple[dict[str, dict[str, Prediction]], int]:
    """Predict greedy and each decoder (configs by name): "configured" and, where other settings are
    faster, "best"; return that and the number of settings tried.

    The best settings are those of one round of `search` over the decoder's space, on the first
    texts. Decoders that cannot be predicted have a `Prediction.failed`.
    """
    found: dict[str, dict[str, Prediction]] = {}
    tried, few = 0, replace(evidence.recorded, runs=evidence.recorded.runs[:SEARCHED])
    searched = replace(evidence, recorded=few, counted={})
    spaces = {
        name: SPACES.get(kind_of(own), {}) if search_settings else {}
        for name, own in decoders.items()
    }
    total = sum(1 + len(values) for space in spaces.values() for values in space.values())
    with tqdm(desc="settings", total=total, leave=False, disable=not progress) as bar:
        for name, config in {PLAIN: {}, **decoders}.items():
            known: dict[str, Prediction] = {}

            def rate(settings: dict, name=name, config=config, known=known) -> float:
                key = json.dumps(settings)
                if key not in known:
                    known[key] = searched.predicted(name, config, settings)
                    bar.update()
                return known[key].tokens_per_s

            start = evidence.predicted(name, config, {})
            found[name] = {"configured": start}
            if spaces.get(name) and not start.failed:
                settings = search(rate, spaces[name], configured=config, rounds=1)
                best = evidence.predicted(name, config, settings)
                if best.tokens_per_s > start.tokens_per_s:
                    found[name]["best"] = best
            tried += max(1, len(known))
    return found, tried


def batch_table(
    evidence: Mapping[str, Evidence], decoders: Mapping[str, Mapping], sizes: Sequence[int]
) -> tuple[pd.DataFrame, dict[str, int | None]]:
    """Predict decoders (configs and evidence by name) for several sequences at once; return a table
    and, by decoder, the smallest of the batch `sizes` at which greedy is faster.

    Every sequence is taken to make the same step at the same time, and decoders that decide by
    costs decide by those of the joint call. Columns: batch, decoder, tokens/s of all and per user,
    speedup over greedy at the same batch size, acceptance of a draft token, the acceptance needed
    to be faster than greedy, `failed`: why nothing is predicted.
    """
    rows = []
    for size in sizes:
        for name, own in evidence.items():
            joint = replace(own, costs=own.costs.batched(size))
            one = joint.predicted(name, decoders[name], {})
            rate, ratio = one.tokens_per_s or None, one.speedup and one.speedup.value
            row = size, name, rate and size * rate, rate, ratio, one.acceptance, one.break_even
            rows.append((*row, one.failed))
    columns = ["batch", "decoder", "tokens/s", "tokens/s/user", "speedup", "acceptance"]
    found = pd.DataFrame(rows, columns=[*columns, "breaks even at", "failed"])
    slower = found[found.speedup < 1].groupby("decoder").batch.min()
    return found, {name: int(slower[name]) if name in slower else None for name in evidence}


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
    if costs is None:
        live = completed(folder.load_samples())
        costs = load_costs(path) if timing else decision_costs or Costs.load(UNTIMED)
    assert costs is not None
    drafts = any(map(needs_draft, decoders.values()))
    draft = recorded.load_draft(spec, tokenizer) if drafts else None
    rates = rates or _measured_rates(recording)
    return Evidence(recorded, costs, draft, decision_costs, rates, live)


def completed(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Return the samples that did not fail, by decoder."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        if not sample.error:
            found.setdefault(sample.decoder, []).append(sample)
    return found


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
    bench = replace(bench, record_trees=False, record_predictions=True)
    with TemporaryDirectory() as place, tqdm(total=bench.total, desc="runs", leave=False) as bar:
        folder = ResultsFolder(place)
        bench.run(folder, lambda sample: bar.update())
        samples, predictions = folder.load_samples(), folder.load_predictions()
    for sample in samples:
        if sample.error:
            raise ValueError(f"{sample.decoder} failed on {sample.example}: {sample.error}")
    live, prompts = completed(samples), {e.id: prompt_ids(tokenizer, e) for e in bench.examples}
    limits = bench.sampling, bench.max_new, target.max_len, target.vocab_size, eos_ids(target)
    dtype = str(target.dtype).removeprefix("torch.")
    recording = {
        name: RecordedRuns(
            [
                RecordedRun(
                    *(s.example, tuple(prompts[s.example]), s.new_tokens, s.finish, s.repeat),
                    predictions.get(s.key, {}),
                    s.group,
                )
                for s in own
            ],
            *limits,
            dtype,
        )
        for name, own in live.items()
    }
    evidence = Evidence(
        runs_of(recording), timed, draft, timed, rates or _measured_rates(recording)
    )
    if costs is not None:
        return evidence
    host, first = Costs.of_samples(samples).host_ms, Costs.of_samples(live[PLAIN]).prefill_ms
    return replace(evidence, costs=replace(timed, host_ms=host, prefill_ms=first), live=live)


def _measured_rates(recording: Mapping[str, RecordedRuns]) -> dict[str, OffTextRates]:
    """Return the off-text rates of each decoder whose predictions were recorded."""
    measured = {name: OffTextRates.measured(own.runs) for name, own in recording.items()}
    return {name: one for name, one in measured.items() if one}
