"""Predict which decoder and settings are fastest on a machine, without running them.

Decoders are replayed on recorded texts; times follow from the counts and the machine's call costs.
For a decoder slower than greedy, one line explains why: cost and tokens per step, and the
acceptance rate at which it would break even.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import Interval, speedup
from ouroboros.bench.metrics.metrics import METRICS, phase_shares
from ouroboros.bench.metrics.sample import PLAIN, Sample, sample_frame, step_frame, step_s
from ouroboros.costs import CostModel, Costs
from ouroboros.decoder_factory import kind_of
from ouroboros.tuning.evidence import Evidence, Settings
from ouroboros.tuning.search import SPACES, search

SEARCHED = 4  # texts used to search for settings


@dataclass(frozen=True)
class Prediction:
    """A decoder's predicted performance with some settings.

    `speedup` is over greedy. `cost_per_token` is in target calls of one node (greedy: 1).
    `shares` has the fractions "draft", "verify" and "host" of the time after the first step.
    `acceptance` is the acceptance rate per draft token; above `break_even` the decoder is faster
    than greedy (None: never). `why` explains in one line why it is slower than greedy (None: it is
    not), `failed` why nothing is predicted.
    """

    settings: Settings
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
        """Predict a decoder's speed from its `samples` and those of greedy (`plain`) on the same
        prompts. `failed` is set if a call is larger than those in the costs."""
        settings, model = dict(settings or {}), CostModel(costs)
        try:
            ours, base = ([model.predict(sample) for sample in of] for of in (samples, plain))
        except ValueError as error:
            return cls(settings, failed=str(error))
        frame, steps = sample_frame(ours, model), step_frame(ours)
        ratio = speedup(sample_frame(base), frame)
        later = steps[steps.number > 0] if (steps.number > 0).any() else steps
        acceptance, needed, why = break_even(base, ours)
        return cls(
            settings,
            METRICS["output_throughput"](ours) or 0.0,
            ratio,
            frame["cost"].sum() / max(1, frame["tokens"].sum()),
            METRICS["tokens_per_target_call"](ours) or 0.0,
            dict(zip(("draft", "verify", "host"), phase_shares(later).fillna(0.0), strict=True)),
            acceptance=acceptance,
            break_even=needed,
            why=None if ratio is None or ratio.value >= 1 else why,
        )


def predict(evidence: Evidence, name: str, config: Mapping, settings: Settings) -> Prediction:
    """Predict the speed of the decoder `name` with `config`, overridden by `settings`; if no
    prediction is possible, `failed` says why."""
    try:
        plain = evidence.counts(PLAIN, {}, {})
        counts = evidence.counts(name, config, settings)
    except ValueError as error:
        return Prediction(dict(settings), failed=str(error))
    return Prediction.of(plain, counts, evidence.costs, settings)


def advise(
    evidence: Evidence,
    decoders: Mapping[str, Mapping],
    *,
    search_settings: bool = True,
    progress: bool = False,
) -> tuple[dict[str, dict[str, Prediction]], int]:
    """Predict greedy and `decoders`, {name: config}; return (predictions, settings tried).

    The predictions are {decoder: {"configured": `Prediction`, "best": `Prediction`}}, with "best"
    only if other settings are faster. The search is one round of `search` over the decoder's
    space in conf/tune, on the first `SEARCHED` texts. If a decoder cannot be predicted,
    `Prediction.failed` says why. The second value is the number of settings tried.
    """
    found: dict[str, dict[str, Prediction]] = {}
    tried, few = 0, replace(evidence.recorded, runs=evidence.recorded.runs[:SEARCHED])
    searched = replace(evidence, recorded=few, counted={})
    searchable = decoders if search_settings else {}
    kinds = {name: name if name in SPACES else kind_of(own) for name, own in searchable.items()}
    spaces = {name: SPACES.get(kind, {}) for name, kind in kinds.items()}
    total = sum(1 + len(values) for space in spaces.values() for values in space.values())
    with tqdm(desc="settings", total=total, leave=False, disable=not progress) as bar:
        for name, config in {PLAIN: {}, **decoders}.items():

            def rate(settings: dict, name=name, config=config) -> float:
                nonlocal tried
                tried += 1
                bar.update()
                return predict(searched, name, config, settings).tokens_per_s

            found[name] = {"configured": (start := predict(evidence, name, config, {}))}
            if not spaces.get(name) or start.failed:
                tried += 1
                continue
            settings = search(rate, spaces[name], configured=config, rounds=1)
            best = predict(evidence, name, config, settings)
            if best.tokens_per_s > start.tokens_per_s:
                found[name]["best"] = best
    return found, tried


def batch_table(
    evidence: Mapping[str, Evidence], decoders: Mapping[str, Mapping], sizes: Sequence[int]
) -> tuple[pd.DataFrame, dict[str, int | None]]:
    """Predict decoders (configs and evidence by name) at several batch sizes. Return (table,
    {decoder: smallest of the `sizes` from which on greedy is faster, None if there is none}).

    When a text ends, the next one joins the batch; only steps of full batches count. A joint call
    is assumed to cost as much as a single call with all its nodes. Columns: batch, decoder,
    tokens/s, tokens/s/user, speedup (over greedy at the same batch size), acceptance (rate per
    draft token), "breaks even at" (the acceptance needed to be as fast as greedy) and failed, the
    reason if nothing is predicted.
    """
    rows = []
    for size in sizes:
        for name, own in evidence.items():
            row: tuple = (None,) * 6
            try:
                both = own.together(PLAIN, {}, size), own.together(name, decoders[name], size)
                plain, ours = (  # without the last steps, when no text is left to fill the batch
                    [replace(s, steps=tuple(t for t in s.steps if t.rows == size)) for s in of]
                    for of in both
                )
                base, speed = (
                    sum(t.new for s in of for t in s.steps)
                    / sum(step_s(t) for s in of for t in s.steps)
                    for of in (plain, ours)
                )
                reached, needed, _ = break_even(plain, ours)
                row = speed, speed / size, speed / base, reached, needed, None
            except ValueError as error:
                row = *row[1:], str(error)
            rows.append((size, name, *row))
    columns = ["batch", "decoder", "tokens/s", "tokens/s/user", "speedup", "acceptance"]
    found = pd.DataFrame(rows, columns=[*columns, "breaks even at", "failed"])
    last = found.decoder.map(found[found.speedup >= 1].groupby("decoder").batch.max()).fillna(0)
    slower = found[(found.speedup < 1) & (found.batch > last)].groupby("decoder").batch.min()
    return found, {name: int(slower[name]) if name in slower else None for name in evidence}


def break_even(
    plain: Sequence[Sample], samples: Sequence[Sample]
) -> tuple[float, float | None, str | None]:
    """Return (acceptance rate, break-even rate, explanation) of a decoder. At the break-even rate,
    the decoder would be as fast as greedy.

    `plain` are greedy's samples, `samples` the decoder's, with measured or predicted times. Only
    steps after the first are used, because the first includes the prefill. Draft tokens are assumed
    to form a chain and to be accepted independently. The acceptance rate is 0 if nothing is
    drafted. The break-even rate is None if drafts of this length never break even. The explanation,
    one line with times in mean greedy steps, is None if no sample has a second step.
    """
    base, ours = ([s for one in of for s in one.steps[1:] if s.scored] for of in (plain, samples))
    if not base or not ours:
        return 0.0, None, None
    unit = float(np.mean([*map(step_s, base)]))
    parts = ("draft_s", "verify_s", "host_s", "new", "scored")
    means = [float(np.mean([getattr(step, part) for step in ours])) for part in parts]
    (draft, verify, host), (tokens, nodes) = [mean / unit for mean in means[:3]], means[3:]
    cost, reached, needed = draft + verify + host, 0.0, None
    drafted = float(np.mean([step.drafted for step in ours if step.drafted] or [0]))
    if drafted:
        needed = acceptance_for(cost, drafted)
        reached = acceptance_for(min(tokens, drafted + 1.0), drafted) or 0.0
    if tokens > cost:
        firsts = [[step_s(s.steps[0]) for s in of if s.steps] for of in (samples, plain)]
        times = np.mean(firsts[0]) / np.mean(firsts[1])
        reading = ", as the draft reads the prompt" if draft else ""
        line = (
            f"only its first step is slower than greedy's, {times:.1f} times{reading}; "
            f"later steps give {tokens:.2f} tokens for {cost:.2f} greedy steps, but "
            "the completions are too short to make up for it"
        )
        return reached, needed, line
    pays = "nothing was drafted"
    if drafted:
        pays = f"a draft of {drafted:.1f} tokens can never give {cost:.2f} tokens"
    if needed is not None:
        pays = f"it breaks even at an acceptance rate of {needed:.2f}; here it is {reached:.2f}"
    spent = [f"a draft of {drafted:.1f} tokens {draft:.2f}"] if draft else []
    spent += [f"a target call of {nodes:.1f} nodes {verify:.2f}", f"Python {host:.2f}"]
    share, where = max((draft, "drafting"), (verify, "in the target"), (host, "in Python"))
    line = (
        f"a step costs {cost:.2f} greedy steps ({', '.join(spent)}) and gives {tokens:.2f} "
        f"tokens; {pays}; {100 * share / cost:.0f} % of the time is {where}"
    )
    return reached, needed, line


def chain_tokens(acceptance: float, gamma: float) -> float:
    """Return the expected tokens of a step with a chain of `gamma` draft tokens that are accepted
    independently (Leviathan et al. 2023, arXiv 2211.17192, eq. 1).

    >>> chain_tokens(0.5, 2), chain_tokens(1.0, 2)
    (1.75, 3.0)
    """
    if acceptance >= 1.0:
        return gamma + 1.0
    return (1.0 - acceptance ** (gamma + 1)) / (1.0 - acceptance)


def acceptance_for(tokens: float, gamma: float) -> float | None:
    """Return the acceptance rate at which `chain_tokens` is `tokens` for drafts of `gamma` tokens;
    0 if `tokens` is at most 1, None if it is above `gamma` + 1."""
    if tokens <= 1.0:
        return 0.0
    if tokens > gamma + 1.0:
        return None
    return float(brentq(lambda acceptance: chain_tokens(acceptance, gamma) - tokens, 0.0, 1.0))
