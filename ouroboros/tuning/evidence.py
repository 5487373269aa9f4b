"""The inputs of predictions: recorded texts of greedy decoding, and the call costs of a machine.

Every decoder is replayed on these texts. They come from a short run on this machine
(`measured_evidence`), or from a results folder, without loading the target (`recorded_evidence`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.recording import RecordedRuns, by_decoder, read_recording, runs_of
from ouroboros.bench.replay.replay import (
    USUAL_RATES,
    OffTextRates,
    check_drafter,
    replay,
    replay_together,
)
from ouroboros.bench.replay.simulated_draft import SimulatedDraft
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import PairSpec, load_tokenizer
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.costs import Costs
from ouroboros.decode import RootOnly
from ouroboros.decoder_factory import (
    decoder_factories,
    kind_of,
    make_decoder,
    needs_draft,
    wants_costs,
)
from ouroboros.engine.model import CachedModel
from ouroboros.instantiate import parameters_of

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # tree sizes to time
CALLS = 3  # timed calls per size and round
Settings = Mapping[str, object]


@dataclass
class Evidence:
    """Greedy's texts and a machine's call costs, from which predictions are made.

    - `draft`: the draft model, if a decoder needs it
    - `decision_costs`: the costs that decoders plan with (default: `costs`)
    - `rates`: `OffTextRates` by decoder or by `kind_of` decoder; the key "" is for all others
      (default: `USUAL_RATES`). If None, decoders that read predictions after draft tokens outside
      the texts cannot be replayed; they are run on `bench`, if given
    - `live`: the samples of the run in which the costs were measured, by decoder
    - `counted`: a cache of replayed samples by decoder, settings and decision costs
    """

    recorded: RecordedRuns
    costs: Costs
    draft: CachedModel | None = None
    decision_costs: Costs | None = None
    rates: Mapping[str, OffTextRates] | None = field(default_factory=dict)
    live: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    counted: dict[str, list[Sample]] = field(default_factory=dict, repr=False)
    bench: Bench | None = None

    def check(self, name: str, config: Mapping) -> None:
        """Raise `ValueError` for a decoder that cannot be replayed on the recorded texts."""
        drafter, rates = self._drafter(name, config), self._rates(name, config)
        check_drafter(drafter, self.recorded, rates=rates)

    def counts(
        self, name: str, config: Mapping, settings: Settings, *, progress: bool = False
    ) -> list[Sample]:
        """Replay a decoder (or run it on `bench`) with `config`, overridden by `settings`. Return
        one sample per text; its `error` is set if the tokens differ from the recorded ones.

        Greedy ignores `config` and `settings`. Raises `ValueError` for settings that the decoder
        does not accept and, without `bench`, for a decoder that cannot be replayed.
        """
        costs = self.decision_costs or self.costs
        decides = name != PLAIN and wants_costs(config)
        key = f"{name} {sorted(settings.items())} {costs if decides else ''}"
        if key in self.counted:
            return self.counted[key]
        drafter = self._drafter(name, config, **settings)
        rates = self._rates(name, config)
        try:
            found = replay(self.recorded, drafter, name=name, rates=rates, progress=progress)
        except ValueError:
            if self.bench is None:
                raise
            found = []
            for run, example in zip(self.recorded.runs, self.bench.examples, strict=False):
                (row,) = self.bench.measured([drafter], [(example, 0)])
                sample = replace(row.sample, decoder=name)
                if not sample.error and tuple(sample.new_tokens) != run.new_tokens:
                    sample = replace(sample, error="the text is not greedy's: is this float32?")
                found.append(sample)
        self.counted[key] = found
        return found

    def together(self, name: str, config: Mapping, size: int) -> list[Sample]:
        """Return a decoder's samples of all texts in batches of `size`, with predicted times; see
        `replay_together`. Raises `ValueError` as `counts` does."""
        make, rates = partial(self._drafter, name, config), self._rates(name, config)
        return replay_together(self.recorded, make, self.costs, size, name=name, rates=rates)

    def _drafter(self, name: str, config: Mapping, **settings: object) -> Any:
        if name == PLAIN:
            return RootOnly()
        if "guard" in parameters_of(config, name):  # off: it depends on measured times
            settings = {"guard": False, **settings}
        draft = copy.copy(self.draft) if isinstance(self.draft, SimulatedDraft) else self.draft
        costs = self.decision_costs or self.costs
        return make_decoder(config, draft, costs=costs, **settings)

    def _rates(self, name: str, config: Mapping) -> OffTextRates | None:
        if self.rates is None:
            return None
        keys = (name, kind_of(config), "")
        return next((self.rates[key] for key in keys if key in self.rates), USUAL_RATES)


def recorded_evidence(
    path: Path | str,
    spec: PairSpec,
    decoders: Mapping[str, Mapping],
    *,
    costs: Costs | None = None,
    rates: Mapping[str, OffTextRates] | None = None,
    task: TaskSpec | None = None,
) -> Evidence:
    """Return the evidence from a results folder: greedy's texts, `costs` (default: from the run's
    times) and `rates` (default: from the run's recorded predictions; see `OffTextRates`).

    The target is not loaded; the draft is loaded only if `decoders` (configs by name) need it.
    Samples of decoders that were recorded with other settings are left out of `live`. `task` is the
    recorded task, if its file has moved. Raises `ValueError` if tokenizer or prompts differ from
    the recorded ones and, without `costs`, if the run was not timed.
    """
    folder, tokenizer = ResultsFolder(path), load_tokenizer(spec)
    recording = read_recording(path, tokenizer, task=task)
    recorded, decision_costs = runs_of(recording, PLAIN), costs or folder.load_costs()
    live: dict[str, list[Sample]] = {}
    if costs is None:
        known = folder.load_run()["config"]["decoder"]
        for name, samples in completed(folder.load_samples()).items():
            if {**known[name], "draft": ""} == {**decoders.get(name, known[name]), "draft": ""}:
                live[name] = samples
        costs = load_costs(path)
    assert costs is not None
    drafts = any(map(needs_draft, decoders.values()))
    draft = recorded.load_draft(spec, tokenizer) if drafts else None
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

    Without `costs`, calls of both models are timed on trees of the sizes `nodes`, in `visits`
    rounds; host time per step and prefill come from the run. Without `rates`, they are measured on
    the run's predictions. Raises `ValueError` if a decoder fails.
    """
    target, tokenizer = bench.target, bench.target.tokenizer
    draft = bench.models[1] if len(bench.models) > 1 else None
    timed = costs
    if timed is None:
        reach = min(model.max_len for model in bench.models) - max(nodes)
        reach = max(1, min(bench.prompts.longest(bench.examples) + bench.max_new, reach))
        grid = {"nodes": nodes, "contexts": [max(1, reach // 2), reach], "visits": visits}
        with tqdm(total=2 * visits, desc="calls", unit="visit", leave=False) as bar:
            timed = Costs.measure_grid(bench.models, **grid, repeats=CALLS, on_visit=bar.update)
    makers = decoder_factories(configs, draft, timed, tokenizer=tokenizer)
    bench = replace(bench, costs=timed, decoders=makers, record_predictions=True)
    with TemporaryDirectory() as place, tqdm(total=bench.total, desc="runs", leave=False) as bar:
        folder = ResultsFolder(place)
        bench.run(folder, lambda sample: bar.update())
        samples, predictions = folder.load_samples(), folder.load_predictions()
    for sample in samples:
        if sample.error:
            raise ValueError(f"{sample.decoder} failed on {sample.example}: {sample.error}")
    live, prompts = completed(samples), {e.id: bench.prompts.ids(e) for e in bench.examples}
    limits = bench.sampling, bench.max_new, target.max_len, target.vocab_size, bench.eos
    made = str(target.dtype).removeprefix("torch."), str(target.describe_engine()["engine"])
    recording = by_decoder(live, samples, predictions, lambda e, _: prompts[e], *limits, *made)
    rates = rates or _measured_rates(recording)
    evidence = Evidence(runs_of(recording), timed, draft, timed, rates)
    if costs is not None:
        return evidence
    host, plain = Costs.of_samples(samples).host_ms, Costs.of_samples(live[PLAIN])
    timed = replace(timed, host_ms=host, prefill_ms=plain.prefill_ms)
    timed = replace(timed, prefill_tokens=plain.prefill_tokens)
    return replace(evidence, costs=timed, live=live)


def completed(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Return {decoder: its samples that did not fail}."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        if not sample.error:
            found.setdefault(sample.decoder, []).append(sample)
    return found


def _measured_rates(recording: Mapping[str, RecordedRuns]) -> dict[str, OffTextRates]:
    """Return the measured `OffTextRates` of each decoder whose predictions were recorded."""
    measured = {name: OffTextRates.measured(own.runs) for name, own in recording.items()}
    return {name: one for name, one in measured.items() if one}
