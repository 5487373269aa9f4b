"""Replay drafters on recorded runs: get a live run's counts without its target or its hardware.

The loop is that of `ouroboros.decode`; the target computes nothing, and the selector looks up its
tokens in the recording. Invariant: with the recorded settings and dtype, every step of a replay
proposes, accepts and counts the same as in the live run, if the draft model computes the same here
(in bfloat16, near ties may differ between devices). Ouroboros is always replayed without
`runners_up`, because only the target's choices are recorded. Reading a prediction that was
not recorded raises `ValueError`, unless `OffTextRates` simulate it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.scripted import Drafting
from ouroboros.bench.replay.simulated_draft import SimulatedDraft
from ouroboros.bench.run.tree_recorder import PrefixKey, prefix_keys
from ouroboros.costs import CostModel, Costs
from ouroboros.decode import Decoding, Drafter, DrafterCapabilities, RootOnly, begin, together
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.select import TokenSelector
from ouroboros.trace import DecodeTrace, cut
from ouroboros.tree import TokenTree

FULL = 6  # minimum number of runs per sequence of a batch
UNKNOWN = -2  # a prediction that was not recorded; -1 means no choice


@dataclass(frozen=True)
class OffTextRates:
    """How often a simulated target is right after draft tokens that deviate from the recorded text.

    After such tokens, the target predicts the recorded token of the next position: with probability
    `after_right` if the last token equals the recorded one at its position, else with probability
    `after_wrong`.
    """

    after_right: float
    after_wrong: float

    @property
    def title(self) -> str:
        """A sentence for the title of a replay: which predictions are simulated, at which rates."""
        shares = f"{self.after_right:g} after a right node, {self.after_wrong:g} after others"
        return f"predictions after tokens that are not in the text are simulated (right: {shares})"

    @classmethod
    def given(cls, shares: object) -> OffTextRates | None:
        """Return the rates from `shares`, (after_right, after_wrong); None if it is None. Raises
        `ValueError` for anything else."""
        try:
            found = None if shares is None else cls(*map(float, shares))  # type: ignore[call-overload]
            if found and not all(0 <= share <= 1 for share in vars(found).values()):
                raise ValueError("a share is from 0 to 1")
            return found
        except (TypeError, ValueError) as error:
            remedy = "give two shares from 0 to 1, as rates=[0.7,0.04]"
            raise ValueError(f"rates={shares}: {remedy}") from error

    @classmethod
    def measured(cls, runs: Iterable[RecordedRun]) -> OffTextRates | None:
        """Measure the rates on recorded predictions; None if one of them has no predictions."""
        hits, tries = [0, 0], [0, 0]
        for run in runs:
            text = run.tokens
            for (along, off), token in run.predictions.items():
                at = along + len(off)
                if off and at < len(text):
                    right = off[-1] == text[at - 1]
                    hits[right] += token == text[at]
                    tries[right] += 1
        return cls(hits[1] / tries[1], hits[0] / tries[0]) if all(tries) else None

    def token(self, text: Sequence[int], key: PrefixKey, *, seed: int = 0) -> int:
        """Return a simulated prediction after the sequence `key`: the text's token at the next
        position (if there is one) with probability `after_right` or `after_wrong`, else a random
        token of the text. The result depends only on the arguments."""
        along, off = key
        at = along + len(off)
        draw = random.Random(f"{seed}-{at}-{off}")
        known = at < len(text)
        right = known and bool(off) and off[-1] == text[at - 1]
        rate = self.after_right if right else self.after_wrong
        return text[at] if known and draw.random() < rate else draw.choice(text)


USUAL_RATES = OffTextRates(0.7, 0.04)
"""Typical rates. Measured on greedy development text of the reference pair: 0.64 to 0.80 and 0.03
to 0.05, with lookahead and Ouroboros at small and large windows."""


class RecordedChoice(TokenSelector):
    """Selector that looks up the token after each node in the recorded text, then in recorded
    predictions; if it is in neither, simulates it with `rates` or returns `UNKNOWN`."""

    def __init__(self, run: RecordedRun, rates: OffTextRates | None = None) -> None:
        self.text, self.predictions, self.rates = run.tokens, dict(run.predictions), rates

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        by_node, found = list(prefix_keys(len(tokens), tree, self.text)), []
        for along, off in map(by_node.__getitem__, tree.logit_nodes):
            if not off and along < len(self.text):
                found.append(self.text[along])
                continue
            if self.rates is not None and (along, off) not in self.predictions:
                self.predictions[along, off] = self.rates.token(self.text, (along, off))
            found.append(self.predictions.get((along, off), UNKNOWN))
        return found


class Predictions(Sequence[int]):
    """One step's predictions `chosen`, for `observe`. Reading an unrecorded prediction raises
    `ValueError` if its node is in `nodes`, the nodes with logits. `drafter` is the drafter's name,
    for this error."""

    def __init__(self, chosen: Sequence[int], nodes: Collection[int], drafter: str) -> None:
        self.chosen, self.nodes, self.drafter = chosen, frozenset(nodes), drafter

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, at):
        if isinstance(at, slice):
            return [self[node] for node in range(*at.indices(len(self)))]
        node = at + len(self) if at < 0 else at
        if self.chosen[node] == UNKNOWN and node in self.nodes:
            raise ValueError(
                f"{self.drafter} asks for a prediction that the recording does not hold: record a "
                "run of the same pair, settings, costs and max_new with record_predictions=true "
                "(Ouroboros also with runners_up=false), or give rates=[0.7,0.04] to simulate "
                "predictions"
            )
        return self.chosen[node]


def check_drafter(
    drafter: object, recorded: RecordedRuns, *, rates: OffTextRates | None = None
) -> None:
    """Raise `ValueError` for a decoder that cannot be replayed on these runs:

    - a decoder of another engine, or that needs the target's probabilities or several best tokens
    - a decoder whose draft has another dtype than the run, or a simulated draft on sampled text
    - without `rates`, a decoder that reads predictions at rejected nodes, if none were recorded
    """
    name = type(drafter).__name__
    if not hasattr(drafter, "propose"):
        raise ValueError(f"{name} is another engine, not a drafter: leave it out of decoder=[...]")
    has, choose = DrafterCapabilities.of(drafter), recorded.sampling.choose("", 0, vocab=1)
    heat, simulated = recorded.sampling.temperature, isinstance(has.draft, SimulatedDraft)
    dtype = "" if has.draft is None else str(has.draft.dtype).removeprefix("torch.")
    unread = has.reads_rejected and rates is None
    if has.rule(choose) is not choose:
        reason = (
            "accepts by rejection sampling, which needs the target's probabilities: replay it with "
            "verification=shared"
        )
    elif has.ranks and not isinstance(drafter, Ouroboros):
        reason = (
            f"learns from the target's {has.ranks} best tokens at each node, and only the best is "
            "recorded: leave it out of decoder=[...] and run it live"
        )
    elif simulated and heat:
        reason = (
            "has a simulated draft, which needs greedy text: give a recording at temperature 0 "
            f"(this one has {heat:g})"
        )
    elif dtype and not simulated and recorded.dtype not in (None, dtype):
        reason = (
            f"drafts in {dtype} here, the recording was made in {recorded.dtype}: give "
            f"model.dtype={recorded.dtype}"
        )
    elif unread and not any(run.predictions for run in recorded.runs):
        reason = (
            "learns from what the target predicts at rejected nodes, which this recording does not "
            "hold: record a run of it with record_predictions=true timing=false, or give "
            "rates=[0.7,0.04] to simulate these predictions"
        )
    else:
        return
    raise ValueError(f"{name} {reason}")


def begun(
    drafter: Drafter,
    recorded: RecordedRuns,
    run: RecordedRun,
    *,
    max_new: int | None = None,
    rates: OffTextRates | None = None,
) -> Decoding:
    """Return a `Decoding` that replays `run`; end it with `at_recorded_end`. `max_new` and `rates`
    as in `replay`; raises `ValueError` as `replay` does."""
    check_drafter(drafter, recorded, rates=rates)
    length = len(run.new_tokens)
    limit = max_new or recorded.max_new or length
    if run.finish == "length" and limit > length:
        raise ValueError(
            f"{run.example} was recorded up to {length} tokens: max_new={limit} is too much"
        )
    draft = DrafterCapabilities.of(drafter).draft
    if isinstance(draft, SimulatedDraft):
        draft.follow(run.tokens)
    choose = recorded.sampling.choose(run.example, run.repeat, vocab=recorded.vocab_size)
    drafting, name = Drafting(drafter, choose), type(drafter).__name__
    drafting.ranks = 0  # rankings are not recorded

    def propose(tokens: Sequence[int], budget: int) -> Any:
        if isinstance(draft, SimulatedDraft):
            draft.accepted = len(tokens)
        return drafter.propose(tokens, budget)

    drafting.propose = propose  # type: ignore[method-assign]
    drafting.observe = lambda tree, chosen, path: drafter.observe(
        tree, Predictions(chosen, tree.logit_nodes, name), path
    )
    options: dict[str, Any] = {"eos": recorded.eos, "choose": RecordedChoice(run, rates)}
    return begin(recorded.target(), drafting, run.prompt, max_new=limit, **options)  # type: ignore[arg-type]


def at_recorded_end(own: Decoding, run: RecordedRun) -> bool:
    """End a decoding if it has as many new tokens as its recorded run; return whether it ended."""
    own.left = 0 if len(own.trace.new_tokens) >= len(run.new_tokens) else own.left
    return own.left == 0


def replay_together(
    recorded: RecordedRuns,
    make: Callable[[], Drafter],
    costs: Costs,
    size: int,
    *,
    name: str,
    rates: OffTextRates | None = None,
) -> list[Sample]:
    """Replay all runs in batches of `size` with `decode.together`; return samples with the times
    that `costs` predict for the joint steps.

    `make` is called `size` times; each of these drafters decodes one run at a time. `name` is the
    decoder's name in the samples and in `costs`. All runs with new tokens are repeated until there
    are `FULL` x `size` or more. Raises `ValueError` as `replay` and `Costs.joint_step_ms` do.
    """
    texts = [run for run in recorded.runs if run.new_tokens]
    runs = islice(cycle(texts), len(texts) * math.ceil(FULL * size / max(1, len(texts))))
    free, places = [make() for _ in range(size)], dict[Decoding, tuple[RecordedRun, Any]]()
    samples, plain_ms, host_ms = list[Sample](), costs.host_of(PLAIN), costs.host_of(name)

    def decodings() -> Iterator[Decoding]:
        for run in runs:
            drafter = free.pop()
            own = begun(drafter, recorded, run, rates=rates)
            places[own] = run, drafter
            yield own

    for live in together(decodings(), size):
        rows, records = len(live), [own.trace.steps[-1] for own in live]
        contexts = [len(own.trace.tokens) - own.trace.steps[-1].new for own in live]
        verify_ms, draft_ms = costs.joint_step_ms(list(zip(records, contexts, strict=True)))
        planned = sum(getattr(places[own][1], "planned", True) for own in live)
        hosting_ms = planned * host_ms + (rows - planned) * plain_ms
        shares_s = [ms / 1e3 / rows for ms in (draft_ms, verify_ms, hosting_ms)]
        times: dict[str, Any] = dict(zip(("draft_s", "verify_s", "host_s"), shares_s, strict=True))
        for own, record in zip(live, records, strict=True):
            own.trace.steps[-1] = replace(record, rows=rows, **times)
            run, drafter = places[own]
            if at_recorded_end(own, run):
                free.append(drafter)
                samples.append(_sample(run, name, own.trace))
    return samples


def _sample(run: RecordedRun, name: str, trace: DecodeTrace) -> Sample:
    """Return the sample of a replay, without tokens after the recorded run's stop string."""
    length = len(run.new_tokens)
    if run.finish == "stop" and len(trace.new_tokens) >= length:
        trace = cut(trace, length)
    return Sample(
        *(run.example, name, run.repeat, 0, len(run.prompt)),
        new_tokens=tuple(trace.new_tokens),
        finish=trace.finish,
        steps=tuple(trace.steps),
        group=run.group,
    )


def replay(
    recorded: RecordedRuns,
    drafter: Drafter,
    *,
    name: str = "",
    max_new: int | None = None,
    rates: OffTextRates | None = None,
    progress: bool = False,
) -> list[Sample]:
    """Replay every recorded run; return one sample per run.

    Samples have no text. Their steps have the seconds of the draft and of the host; those of the
    target are 0. `name` is the decoder's name in the samples; `progress` shows a progress bar.
    `max_new` is the limit of new tokens (None: as recorded); `rates` simulate predictions that were
    not recorded. Raises `ValueError` if a recorded run ends at a length limit before `max_new`, and
    as `check_drafter` does.
    """
    samples, draft = [], DrafterCapabilities.of(drafter).draft
    for run in tqdm(recorded.runs, desc=name, unit="run", leave=False, disable=not progress):
        if draft is not None:
            draft.empty()
        own = begun(drafter, recorded, run, max_new=max_new, rates=rates)
        for _ in together([own], 1):
            at_recorded_end(own, run)
        samples.append(_sample(run, name, own.trace))
    return samples


def replay_table(
    samples: Mapping[str, Sequence[Sample]],
    recorded: Mapping[str, RecordedRuns],
    *,
    costs: Costs | None = None,
    draft_ratio: float | None = None,
    max_new: int | None = None,
) -> pd.DataFrame:
    """Return a table with a row per decoder, indexed by name. `samples` and `recorded` map these
    names to the decoder's samples and the runs that it replayed.

    Columns: runs, new_tokens, target_calls, tokens_per_target_call, acceptance_length,
    draft_calls_per_token, calls_per_token and, with `costs`, predicted_ms_per_token and
    predicted_speedup, over plain decoding of the same runs with `max_new`, and failed, the reason
    if nothing is predicted. `draft_ratio` is a draft call's cost in target calls; without it,
    calls_per_token is NaN for decoders that draft with a model.
    """
    rows = {}
    for name, own in samples.items():
        calls = [step for sample in own for step in sample.steps]
        tokens = sum(len(sample.new_tokens) for sample in own)
        row: dict[str, Any] = {"runs": len(own), "new_tokens": tokens}
        row["target_calls"] = len(calls)
        for metric in ("tokens_per_target_call", "acceptance_length", "draft_calls_per_token"):
            row[metric] = METRICS[metric](own)
        if draft_ratio is not None or not any(step.draft_calls for step in calls):
            found = METRICS["calls_per_token"](own, draft_cost=draft_ratio or 0.0)
            row["calls_per_token"] = found and found.value
        if costs is not None and tokens:
            model = CostModel(costs)
            plain = replay(recorded[name], RootOnly(), name=PLAIN, max_new=max_new)
            row["failed"] = model.why_not(own) or model.why_not(plain)
            if row["failed"] is None:
                spent, plain_s = (sum(model.predict(s).wall_s for s in of) for of in (own, plain))
                row["predicted_ms_per_token"] = 1e3 * spent / tokens
                row["predicted_speedup"] = plain_s / spent
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("decoder")
