"""Replay drafters on recorded runs: get a live run's counts without its target or its hardware.

The loop is that of `ouroboros.decode`; the target computes nothing, and the selector looks up its
tokens in the recording. Invariant: with the recorded settings and dtype, every step of a replay
proposes, accepts and counts the same as in the live run, if the draft model computes the same here.
Ouroboros is always replayed without `runners_up`. Reading a prediction that was not recorded raises
`ValueError`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.scripted import Drafting
from ouroboros.bench.run.tree_recorder import prefix_keys
from ouroboros.core.instantiate import parameters_of
from ouroboros.core.select import TokenSelector
from ouroboros.core.trace import cut
from ouroboros.core.tree import TokenTree
from ouroboros.costs import CostModel, Costs
from ouroboros.decode import Drafter, DrafterCapabilities, RootOnly, begin, together
from ouroboros.decoder_factory import make_decoder
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.engine.model import CachedModel

UNKNOWN = -2  # a prediction that was not recorded; -1 means no choice


class RecordedChoice(TokenSelector):
    """Selector that looks up the token after each node in the recorded text, then in recorded
    predictions; `UNKNOWN` if it is in neither."""

    def __init__(self, run: RecordedRun) -> None:
        self.text, self.predictions = run.tokens, run.predictions

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        by_node, found = list(prefix_keys(len(tokens), tree, self.text)), []
        for along, off in map(by_node.__getitem__, tree.logit_nodes):
            in_text = not off and along < len(self.text)
            known = self.predictions.get((along, off), UNKNOWN)
            found.append(self.text[along] if in_text else known)
        return found


class Predictions(Sequence[int]):
    """One step's predictions `chosen`, for `observe`. Reading an unrecorded prediction of one of
    `nodes`, those with logits, raises `ValueError`."""

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
                "(Ouroboros also with runners_up=false)"
            )
        return self.chosen[node]


def replay_decoder(
    config: Mapping, draft: CachedModel | None, costs: Costs, **settings: object
) -> Any:
    """Return a decoder as `make_decoder`, without adapting to measured times."""
    if "adapt" in parameters_of(config, "decoder"):
        settings = {"adapt": False, **settings}
    return make_decoder(config, draft, costs=costs, **settings)


def check_drafter(drafter: object, recorded: RecordedRuns) -> None:
    """Raise `ValueError` for a decoder that cannot be replayed on these runs."""
    name = type(drafter).__name__
    if not hasattr(drafter, "propose"):
        raise ValueError(f"{name} is another engine, not a drafter: leave it out of decoder=[...]")
    has, choose = DrafterCapabilities.of(drafter), recorded.sampling.choose("", 0, vocab=1)
    dtype = "" if has.draft is None else str(has.draft.dtype).removeprefix("torch.")
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
    elif dtype and recorded.dtype not in (None, dtype):
        reason = (
            f"drafts in {dtype} here, the recording was made in {recorded.dtype}: give "
            f"model.dtype={recorded.dtype}"
        )
    elif has.reads_rejected and not any(run.predictions for run in recorded.runs):
        reason = (
            "learns from what the target predicts at rejected nodes, which this recording does not "
            "hold: record a run of it with record_predictions=true timing=false"
        )
    else:
        return
    raise ValueError(f"{name} {reason}")


def replay(
    recorded: RecordedRuns,
    drafter: Drafter,
    *,
    name: str = "",
    max_new: int | None = None,
    progress: bool = False,
) -> list[Sample]:
    """Replay every recorded run; return one sample per run, named `name`.

    Samples have no text. Their steps have the seconds of the draft and of the host; those of the
    target are 0. `max_new` is the limit of new tokens (None: as recorded). Raises `ValueError` if a
    recorded run ends at a length limit before `max_new`, and as `check_drafter` does.
    """
    check_drafter(drafter, recorded)
    samples, draft = [], DrafterCapabilities.of(drafter).draft
    for run in tqdm(recorded.runs, desc=name, unit="run", leave=False, disable=not progress):
        length = len(run.new_tokens)
        limit = max_new or recorded.max_new or length
        if run.finish == "length" and limit > length:
            raise ValueError(
                f"{run.example} was recorded up to {length} tokens: max_new={limit} is too much"
            )
        if draft is not None:
            draft.empty()
        choose = recorded.sampling.choose(run.example, run.repeat, vocab=recorded.vocab_size)
        drafting = Drafting(drafter, choose)
        drafting.ranks = 0  # rankings are not recorded
        drafting.observe = lambda tree, chosen, path: drafter.observe(
            tree, Predictions(chosen, tree.logit_nodes, type(drafter).__name__), path
        )
        options: dict[str, Any] = {"eos": recorded.eos, "choose": RecordedChoice(run)}
        own = begin(recorded.target(), drafting, run.prompt, max_new=limit, **options)  # type: ignore[arg-type]
        for _ in together([own], 1):
            if len(own.trace.new_tokens) >= length:
                own.left = 0
        trace = own.trace
        if run.finish == "stop" and len(trace.new_tokens) >= length:
            trace = cut(trace, length)  # without tokens after the recorded stop string
        samples.append(
            Sample(
                *(run.example, name, run.repeat, 0, len(run.prompt)),
                new_tokens=tuple(trace.new_tokens),
                finish=trace.finish,
                steps=tuple(trace.steps),
            )
        )
    return samples


def replay_table(
    samples: Mapping[str, Sequence[Sample]],
    recorded: Mapping[str, RecordedRuns],
    *,
    costs: Costs | None = None,
    draft_ratio: float | None = None,
    max_new: int | None = None,
) -> pd.DataFrame:
    """Return a table with a row per decoder, indexed by name, of counts and, with `costs`,
    predicted_ms_per_token and predicted_speedup (over plain decoding of the same runs), and
    failed, the reason if nothing is predicted. `samples` and `recorded` map these names to the
    decoder's samples and the runs that it replayed. `draft_ratio` is a draft call's cost in
    target calls; without it, calls_per_token is NaN for decoders that draft with a model."""
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
