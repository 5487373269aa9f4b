"""What a draft of each agreement is worth on recorded text, with no model at all.

Drafts are simulated, calls counted, their time predicted from costs; nothing else takes time.
Settings are chosen for each decoder, agreement and machine on held-out prompts, the figures are of
the others. Invariant: decoders share their texts, so all differences between them are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tqdm import tqdm

from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.replay.draft_errors import DraftErrorModel
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.replay.simulated_draft import SimulatedDraft
from ouroboros.costs import Costs, Surface
from ouroboros.tuning.advise import Evidence
from ouroboros.tuning.predict import predict
from ouroboros.tuning.search import Space, search

CONTEXT = 512  # tokens, of the calls whose costs are taken
ALL = "all"


@dataclass(frozen=True)
class DraftValue:
    """The speedup over greedy of a decoder on a group of prompts, by the costs of that name with a
    draft call of `ratio` target calls.

    `agreement` is its draft's, None without a draft. `settings` were chosen on other prompts.
    """

    group: str
    costs: str
    ratio: float
    decoder: str
    agreement: float | None
    speedup: Interval
    prompts: int
    settings: Mapping[str, object] = field(default_factory=dict)


def draft_values(
    recorded: RecordedRuns,
    decoders: Mapping[str, Mapping],
    agreements: Sequence[float],
    machines: Mapping[tuple[str, float], Costs],
    tokenizer,
    *,
    spaces: Mapping[str, Space] | None = None,
    rates: OffTextRates | None = None,
    errors: DraftErrorModel | None = None,
    seed: int = 0,
    held_out: int = 3,
) -> Iterator[DraftValue]:
    """Yield the value of every decoder (configs by name) for each agreement, machine and group.

    `machines` are costs by (name, ratio), see `with_ratio`. One prompt in `held_out` of each group
    chooses settings in `spaces`. Without `rates` decoders that read predictions off the text are
    refused. Raises `ValueError` for a decoder that cannot be predicted.
    """
    chosen = held_out_examples(recorded.runs, held_out)
    parts = [
        replace(recorded, runs=[r for r in recorded.runs if (r.example in chosen) == held])
        for held in (True, False)
    ]
    off_text = None if rates is None else {"": rates}
    drafting = [name for name, own in decoders.items() if "draft" in own]
    others = [name for name in decoders if name not in (PLAIN, *drafting)]
    rounds = [(None, others), *((one, drafting) for one in agreements)]
    for agreement, names in tqdm(rounds, desc="agreements", leave=False):
        draft = None
        if agreement is not None:
            draft = SimulatedDraft.of(agreement, recorded, tokenizer, errors=errors, seed=seed)
        counted: tuple[dict, dict] = {}, {}
        for (costs_name, ratio), costs in machines.items():
            tried, shown = (
                Evidence(part, costs, draft, rates=off_text, counted=known)  # type: ignore[arg-type]
                for part, known in zip(parts, counted, strict=True)
            )
            for name in names:
                config, space = decoders[name], (spaces or {}).get(name, {})
                best = search(
                    partial(_rate, tried, name, config), space, configured=config, rounds=1
                )
                samples = shown.counts(name, config, best)
                plain = shown.counts(PLAIN, {}, {})
                groups = list(dict.fromkeys(sample.group for sample in samples))
                for group in [*(groups if len(groups) > 1 else ()), ALL]:
                    base, ours = (
                        [s for s in side if group in (s.group, ALL)] for side in (plain, samples)
                    )
                    found = predict(base, ours, costs)
                    if found.speedup is None:
                        raise ValueError(f"{name}: {found.failed}")
                    prompts = len({sample.example for sample in ours})
                    yield DraftValue(
                        *(group, costs_name, ratio, name, agreement),
                        found.speedup,
                        prompts,
                        best,
                    )


def _rate(evidence: Evidence, name: str, config: Mapping, settings: Mapping) -> float:
    return evidence.predicted(name, config, settings).tokens_per_s


def held_out_examples(runs: Sequence[RecordedRun], step: int) -> set[str]:
    """Return every `step`-th prompt of each group."""
    by_group: dict[str, dict[str, None]] = {}
    for run in runs:
        by_group.setdefault(run.group, {})[run.example] = None
    return {one for examples in by_group.values() for one in [*examples][step - 1 :: step]}


def with_ratio(costs: Costs, ratio: float) -> Costs:
    """Return the costs of calls alone, at every context those at `CONTEXT`, with the draft's calls
    scaled so that one of a single node costs `ratio` of the target's.

    Raises `ValueError` for costs without a draft.
    """
    if costs.draft is None:
        raise ValueError("the costs have no draft model: give draft_ms")

    def flat(surface: Surface, factor: float = 1.0) -> Surface:
        sizes = next(iter(surface.ms.values()))
        row = {nodes: factor * surface.call_ms(nodes, CONTEXT) for nodes in sizes}
        return Surface({math.inf: row}, padded=surface.padded)

    target, draft = flat(costs.target), flat(costs.draft)
    factor = ratio * target.call_ms(1, CONTEXT) / draft.call_ms(1, CONTEXT)
    return Costs(target, flat(costs.draft, factor))


def pays_from(values: Sequence[DraftValue]) -> dict[str, tuple[float | None, bool]]:
    """Return for each decoder with a draft the agreement from which on it is faster than the best
    decoder without one, on straight lines between the agreements tried.

    `values` are of one group under one set of costs. (None, False): at no agreement that was tried;
    (a, True): already at the lowest one, a.
    """
    without = max((one.speedup.value for one in values if one.agreement is None), default=1.0)
    found: dict[str, tuple[float | None, bool]] = {}
    for name in dict.fromkeys(one.decoder for one in values if one.agreement is not None):
        line = sorted(
            (one.agreement, one.speedup.value - without)
            for one in values
            if one.decoder == name and one.agreement is not None
        )
        below = [at for at, (_, gain) in enumerate(line) if gain < 0]
        if line[-1][1] < 0:
            found[name] = None, False
        elif not below:
            found[name] = line[0][0], True
        else:
            (left, low), (right, high) = line[below[-1]], line[below[-1] + 1]
            found[name] = left + (right - left) * -low / (high - low), False
    return found
