"""All metrics: the entries of `METRICS`, from which tables, files and the glossary are made.

Terms: a *step* is one iteration of the loop, with one target call; *accepted* excludes the bonus
token and *new* includes it. A metric's formula is computed for one decoder at a time; the names of
its parameters select its inputs:

    samples     the decoder's completions, a `sample_frame`    steps   their steps, a `step_frame`
    greedy      greedy's completions                           failed  its failed samples
    ouroboros   Ouroboros' completions                         audit   the audit's verdict

A formula returns a number, an `Interval`, or (`scalar=False`) a text, list or mapping; None or NaN
if there is nothing to count.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ouroboros.bench.metrics import intervals
from ouroboros.bench.metrics.intervals import Interval, per_token, speedup
from ouroboros.bench.metrics.sample import (
    COST_RATIO,
    Sample,
    acceptance_record,
    sample_frame,
    step_frame,
)
from ouroboros.bench.tasks.task import YES_OR_NO, CorpusScored, Example, Task
from ouroboros.costs import CostModel

Frame = pd.DataFrame


@dataclass(frozen=True)
class Metric:
    """One metric: its `name` in files, `heading` (at most three words) in tables, and definition.

    - `better`: "higher", "lower" or ""
    - `scale`, `digits`, `suffix`: a cell shows `scale` x value with `digits` decimals and `suffix`
    - `interval`: the value has a 95 % CI; `scalar`: it is a number or an `Interval`
    - `timed`: unavailable if jobs shared the device; `priced`: needs call costs
    - `by_group`: also computed for each group of prompts
    - `tables`: the tables with a column for it, separated by spaces: "default" (terminal), "speed",
      "lead", "time", "counts", "headline" (the JSON line). "comparison" and "groups" show each
      metric in a table of its own: a column per decoder, a row per run or group of prompts
    - `instead_of`: names of metrics; the table "default" omits this one if any of them is available
    """

    name: str
    heading: str
    formula: Callable
    definition: str
    better: str = ""
    digits: int = 2
    scale: float = 1.0
    suffix: str = ""
    interval: bool = False
    timed: bool = False
    priced: bool = False
    by_group: bool = False
    scalar: bool = True
    tables: str = ""
    instead_of: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the formula's parameters."""
        return tuple(inspect.signature(self.formula).parameters)

    def __call__(self, samples: Sequence[Sample], **given):
        """Return the value for some completions; `given` as in `Registry.measure`."""
        return Registry(self).measure(samples, **given)[self.name]


class Registry(dict[str, Metric]):
    """Metrics by name, in the order in which tables show them."""

    def __init__(self, *entries: Metric) -> None:
        super().__init__({metric.name: metric for metric in entries})
        assert len(self) == len(entries), "a metric is registered twice"

    def shown_in(self, table: str) -> list[Metric]:
        """Return the metrics that a table shows."""
        return [metric for metric in self.values() if table in metric.tables.split()]

    def measure(
        self,
        samples: Sequence[Sample],
        *,
        costs: CostModel | None = None,
        draft_cost: float = COST_RATIO,
        timed: bool = True,
        groups: bool = False,
        **given,
    ) -> dict:
        """Return every metric of one decoder's completions: {name: value}.

        `costs` and `draft_cost` as in `sample_frame`. `given` has the formulas' other inputs (see
        the module docstring). A metric is None if an input is missing, or if it needs times and
        `timed` is false. With `groups`, only the metrics with `by_group` are computed.
        """
        chosen = [metric for metric in self.values() if metric.by_group or not groups]
        given = {"samples": samples, **given}
        for role in ("samples", "greedy", "ouroboros"):
            if not isinstance(given.get(role), Frame | None):
                given[role] = sample_frame(given[role], costs, draft_cost)
        if any("steps" in metric.needs for metric in chosen):
            given["steps"] = step_frame(samples)
        found = {}
        for metric in chosen:
            needed = {name: given.get(name) for name in metric.needs}
            known = not any(value is None for value in needed.values())
            value = metric.formula(**needed) if known and (timed or not metric.timed) else None
            if isinstance(value, float | np.number):
                value = None if np.isnan(value) else np.asarray(value).item()
            found[metric.name] = value
        return found


def ratio(above: pd.Series, below: pd.Series) -> float | None:
    """Return the sum of `above` / the sum of `below`; None if the latter is 0."""
    return above.sum() / below.sum() if below.sum() else None


def over_greedy(*amount: str, macro: bool = False, equal: bool = False) -> Callable:
    """Return the formula of the speedup over greedy; arguments as of `intervals.speedup`."""
    return lambda samples, greedy: speedup(greedy, samples, *amount, macro=macro, equal=equal)


def over_ouroboros(*amount: str) -> Callable:
    """Return the formula of Ouroboros' speedup over the decoder."""
    return lambda samples, ouroboros: speedup(samples, ouroboros, *amount)


def by_prompt(samples: Frame, greedy: Frame) -> pd.Series:
    """Return each prompt's speedup over greedy."""
    sums = intervals.paired(greedy, samples, "wall_s", "tokens")
    return pd.Series(per_token(*sums, axis=()))


def user_throughput(samples: Frame) -> float | None:
    """Return the mean tokens per second of a sequence in a batch; None without batches."""
    batched = samples.query("batch_size > 1")
    return ratio(batched.tokens, batched.latency_s)


def pace(samples: Frame) -> pd.Series:
    """Return each completion's milliseconds per token after its first step."""
    seconds = samples.latency_s - samples.ttft_s
    return 1e3 * seconds / samples.decode_tokens.replace(0, np.nan)


def phase_shares(steps: Frame) -> pd.Series:
    """Return the shares of step time spent in the draft, in the target and on the host, without
    steps of other engines."""
    seconds = steps.loc[steps.scored > 0, ["draft_s", "verify_s", "host_s"]].sum()
    return seconds / seconds.sum()


def recorded(steps: Frame) -> Frame:
    """Return the steps if forward passes were counted in all of them, else an empty frame."""
    return steps if (steps.target_forwards > 0).all() else steps.iloc[:0]


def per_position(column: str) -> Callable:
    """Return the formula of a list over positions k = 1, 2, ... of the draft: by `column`

    - `accepted`: the share of all steps that accepted k tokens or more
    - `reached`: the number of steps that drafted k or more and accepted the first k - 1
    - `conditional`: the share of these that accepted the k-th token too
    """

    def formula(steps: Frame) -> list:
        drafted, accepted, values = steps.drafted, np.minimum(steps.accepted, steps.drafted), []
        for k in range(1, max(drafted, default=0) + 1):
            kept, reached = (accepted >= k).sum(), ((drafted >= k) & (accepted >= k - 1)).sum()
            share = float(kept / reached) if reached else None
            of = {"accepted": float(kept / len(steps)), "reached": int(reached)}
            values.append({**of, "conditional": share}[column])
        return values

    return formula


def unequal(samples: Frame, greedy: Frame) -> int | None:
    """Return how many completions differ from greedy's; None without completions of both."""
    pairs = greedy[["new_tokens"]].add_suffix("_greedy").join(samples["new_tokens"], how="inner")
    return (pairs.new_tokens != pairs.new_tokens_greedy).sum() if len(pairs) else None


def repetition(tokens: Sequence[int]) -> float | None:
    """Return the share of a completion's 4-grams that repeat an earlier one; None without 4-grams.

    >>> repetition([1, 2, 3, 4, 1, 2, 3, 4])
    0.2
    """
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return (len(grams) - len(set(grams))) / len(grams) if grams else None


RATIO: dict = {"suffix": "x", "better": "higher"}
PAIRED: dict = {**RATIO, "interval": True}
LEAD: dict = {**PAIRED, "better": "lower"}
TIMED: dict = {"timed": True, **PAIRED}
RATE: dict = {"better": "higher", "digits": 1, "timed": True}
SHARE: dict = {"digits": 0, "scale": 100.0, "suffix": " %"}
PHASE: dict = {"timed": True, "tables": "time", **SHARE}
TIME: dict = {"timed": True, "better": "lower", "tables": "time"}
PERCENTILE: dict = {**TIME, "digits": 1}
COUNT: dict = {"better": "lower", "tables": "counts"}

# fmt: off
METRICS = Registry(
    Metric("samples", "samples", lambda samples: len(samples),
           "Completions that were measured; failed ones are left out.",
           digits=0, by_group=True, tables="speed"),
    Metric("failed", "failed", lambda failed: len(failed), "Completions that failed.",
           better="lower", digits=0, tables="headline"),
    Metric("new_tokens", "new tokens", lambda samples: samples.tokens.sum(),
           "Generated tokens of all completions.", digits=0),

    # Speed
    Metric("output_throughput", "tokens/s", lambda samples: ratio(samples.tokens, samples.wall_s),
           "New tokens / seconds from the call to the last token, prefill included; in batches, of "
           "all sequences together.",
           tables="default speed headline comparison", by_group=True, **RATE),
    Metric("user_throughput", "tokens/s/user", user_throughput,
           "In batches: new tokens / seconds that their sequence took, prefill included.",
           tables="default speed comparison", **RATE),
    Metric("latency_speedup", "speedup", over_greedy(),
           "Greedy's seconds per token / the decoder's, over all completions of the same prompts, "
           "prefill included; both at the same batch size.",
           timed=True, by_group=True, tables="default speed headline comparison groups", **PAIRED),
    Metric("predicted_speedup", "predicted speedup", over_greedy("predicted_s"),
           "Speedup over greedy predicted with costs, without prefill if these have none; a fit if "
           "the same run measured these costs.",
           priced=True, tables="default speed headline comparison groups", by_group=True,
           instead_of="latency_speedup", **PAIRED),
    Metric("latency_speedup_macro", "macro speedup", over_greedy(macro=True),
           "Geometric mean over prompts of each prompt's speedup over greedy.",
           timed=True, tables="speed comparison", **PAIRED),
    Metric("decode_speedup", "decode speedup", over_greedy("decode_s", "decode_tokens"),
           "Speedup over greedy in time per token after the first step (without the prefill).",
           timed=True, tables="speed", **PAIRED),
    Metric("slower_share", "slower prompts",
           lambda samples, greedy: (by_prompt(samples, greedy) < 1).mean(),
           "Share of the prompts that took longer per token than with greedy.",
           timed=True, better="lower", tables="speed", by_group=True, **SHARE),
    Metric("worst_speedup", "worst prompt",
           lambda samples, greedy: by_prompt(samples, greedy).min(),
           "The smallest speedup over greedy of a single prompt.", timed=True, by_group=True,
           tables="speed comparison", **RATIO),
    Metric("equal_speedup", "equal speedup", over_greedy(equal=True),
           "Speedup over greedy on the completions that equal greedy's alone.", **TIMED),

    # Every decoder against Ouroboros
    Metric("latency_vs_ouroboros", "Ouroboros' lead", over_ouroboros(),
           "The decoder's seconds per token / Ouroboros'; above 1, Ouroboros is faster.",
           timed=True, tables="default lead headline comparison", **LEAD),
    Metric("predicted_vs_ouroboros", "Ouroboros' predicted lead", over_ouroboros("predicted_s"),
           "The decoder's predicted seconds per token / Ouroboros', same prompts.",
           tables="default lead comparison", instead_of="latency_vs_ouroboros", priced=True,
           **LEAD),
    Metric("calls_vs_ouroboros", "Ouroboros' calls lead", over_ouroboros("calls"),
           "The decoder's calls per token / Ouroboros', same prompts.",
           tables="default lead", instead_of="latency_vs_ouroboros predicted_vs_ouroboros", **LEAD),

    # Time and memory
    Metric("ttft_ms", "TTFT (ms)", lambda samples: 1e3 * samples.ttft_s.mean(),
           "Mean time from the call to the end of the first step, with the prefill.",
           digits=0, instead_of="user_throughput", **{**TIME, "tables": "default time"}),
    Metric("tpot_ms", "TPOT (ms)",
           lambda samples: ratio(1e3 * (samples.latency_s - samples.ttft_s), samples.decode_tokens),
           "Time per token after the first step: (latency - TTFT) / (tokens - the first step's).",
           **TIME),
    Metric("predicted_share", "predicted/measured",
           lambda samples: ratio(samples.predicted_decode_s, samples.decode_s),
           "Predicted / measured seconds after the first step. If the costs have no host time, the "
           "prediction uses the measured one.",
           timed=True, priced=True, tables="time"),
    Metric("median_ttft_ms", "TTFT p50 (ms)",
           lambda samples: 1e3 * samples.ttft_s.quantile(0.5),
           "Median time to first token of a completion.", **PERCENTILE),
    Metric("p99_ttft_ms", "TTFT p99 (ms)",
           lambda samples: 1e3 * samples.ttft_s.quantile(0.99),
           "99th percentile of the time to first token.", **PERCENTILE),
    Metric("median_tpot_ms", "TPOT p50 (ms)",
           lambda samples: pace(samples).quantile(0.5),
           "Median over completions of the time per token after the first step.", **PERCENTILE),
    Metric("p99_tpot_ms", "TPOT p99 (ms)",
           lambda samples: pace(samples).quantile(0.99),
           "99th percentile over completions of the time per token after the first step.",
           **PERCENTILE),
    Metric("e2e_latency_s", "E2E (s)", lambda samples: samples.latency_s.mean(),
           "Mean seconds from the call to the last token of a completion, prefill included.",
           **TIME),
    Metric("draft_share", "draft time", lambda steps: phase_shares(steps).draft_s,
           "Share of the time in steps spent in the draft model.", **PHASE),
    Metric("verify_share", "verify time", lambda steps: phase_shares(steps).verify_s,
           "Share of the time in steps spent in the target model.", **PHASE),
    Metric("host_share", "host time", lambda steps: phase_shares(steps).host_s,
           "Share of the time in steps spent outside both models, in Python.", **PHASE),
    Metric("peak_bytes", "peak GiB", lambda samples: samples.peak_bytes.max(),
           "Largest peak of device memory of any completion, summed over the GPUs in use.",
           better="lower", digits=1, scale=2**-30, tables="time"),

    # Calls and acceptance
    Metric("accepted_per_step", "accepted/step",
           lambda steps: steps[steps.drafted > 0].accepted.mean(),
           "Accepted draft tokens per step that had a draft; the bonus token does not count.",
           better="higher", tables="default"),
    Metric("acceptance_length", "acceptance length",
           lambda steps: 1 + steps[steps.drafted > 0].accepted.mean(),
           "New tokens per step that had a draft: 1 + accepted/step, the bonus included (as vLLM).",
           better="higher", by_group=True, tables="counts headline"),
    Metric("tokens_per_target_call", "tokens/call", lambda steps: steps.new.mean(),
           "New tokens / target calls; the prefill is part of the first call.",
           better="higher", tables="counts"),
    Metric("cost_per_token", "cost/token", lambda samples: intervals.pooled(samples, "cost"),
           "Predicted time of all calls per new token, in target calls of one node.",
           priced=True, interval=True,
           **{**COUNT, "digits": 3, "tables": "counts comparison"}),
    Metric("calls_per_token", "calls/token", lambda samples: intervals.pooled(samples, "calls"),
           "(Target calls + draft cost x draft calls) / new tokens, for calls of any size; a call "
           "of two forward passes counts twice.",
           interval=True, instead_of="output_throughput",
           **{**COUNT, "digits": 3, "tables": "default counts headline comparison"}),
    Metric("draft_calls_per_token", "draft calls/token",
           lambda steps: ratio(steps.draft_calls, steps.new),
           "Draft calls / new tokens.", **COUNT),
    Metric("target_forwards_per_token", "target forwards/token",
           lambda steps: ratio(steps.target_forwards, recorded(steps).new),
           "Forward passes of the target / new tokens, where recorded.", digits=3, **COUNT),
    Metric("draft_forwards_per_token", "draft forwards/token",
           lambda steps: ratio(steps.draft_forwards, recorded(steps).new),
           "Forward passes of the draft / new tokens, where recorded.", digits=3, **COUNT),
    Metric("nodes_per_token", "nodes/token",
           lambda steps: ratio(steps.scored, steps.new[steps.scored > 0]),
           "Nodes that the target scored, the prompt excluded / new tokens.", **COUNT),
    Metric("scored_per_step", "nodes/call", lambda steps: steps[steps.scored > 0].scored.mean(),
           "Nodes that the target scored per call, root and probes included, the prompt excluded.",
           digits=1, tables="counts"),
    Metric("draft_acceptance_rate", "draft accepted",
           lambda steps: ratio(steps.accepted, steps.drafted),
           "Accepted / drafted tokens; of a tree, only the deepest branch counts as drafted.",
           better="higher", tables="counts", **SHARE),
    Metric("accepted_per_position", "accepted by position", per_position("accepted"),
           "Share of all steps, those without a draft included, that accepted k tokens or more.",
           scalar=False),
    Metric("conditional_per_position", "conditional acceptance", per_position("conditional"),
           "Of the steps whose draft reached position k (k - 1 tokens accepted, at least k "
           "drafted), the share that accepted the k-th token.", scalar=False),
    Metric("reached_per_position", "reached positions", per_position("reached"),
           "Steps whose draft reached position k: the denominators of conditional acceptance.",
           scalar=False),
    Metric("speculative_decoding", "acceptance record",
           lambda steps: acceptance_record([*steps.itertuples()]),
           "Acceptance in the fields of vLLM's per-request records, summed over completions.",
           scalar=False),
    Metric("tokens_by_source", "tokens by source",
           lambda steps: dict(
               Counter(x or "unknown" for own in steps.sources for x in own).most_common()),
           "New tokens by their source; corrections and bonus tokens are the target's.",
           scalar=False),

    # Losslessness and repetition. Real models' greedy answers: Llama-2-70B on MT-Bench 9 %, Vicuna
    # 7B on Spec-Bench 13 %, a 33B code model on HumanEval 14 %. Repetitive text is easy to draft.
    Metric("repetition_rate", "repetition",
           lambda samples: samples.new_tokens.map(repetition).astype(float).mean(),
           "Mean share of a completion's 4-grams that occurred before; 9 to 15 % in real answers.",
           tables="speed", **SHARE),
    Metric("unequal", "unequal", unequal,
           "Completions whose tokens differ from greedy's for the same prompt and repeat.",
           better="lower", digits=0, tables="speed headline"),
    Metric("verdict", "verdict", lambda audit: audit,
           "The audit's verdicts: identical, tie (explained by rounding), BUG, in law (rejection "
           "sampling preserves only the distribution), reference (greedy itself). (float64): "
           "greedy compared with the model in float64.",
           scalar=False, tables="default speed headline"),
)
# fmt: on


def score_metric(name: str) -> Metric:
    """Return the metric "score.<name>" of a task's score."""
    better = "lower" if name == "timed_out" else "higher"
    look: dict = {"better": better, "digits": 3, "interval": True, "tables": "default speed"}
    return Metric(f"score.{name}", name, lambda: None, f"The task's score {name}.", **look)


def score_intervals(
    samples: Iterable[Sample], scores: Mapping[tuple[str, str, int], Mapping[str, float]]
) -> dict[str, Interval]:
    """Return {name of a task score: its mean over prompts}; "passed" is renamed "pass@1".

    The interval is Wilson's for scores in `YES_OR_NO` if the repeats of each prompt are equal, else
    a bootstrap over prompts.
    """
    by_prompt: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for name, value in scores.get(sample.key, {}).items():
            by_prompt.setdefault(name, {}).setdefault(sample.example, []).append(value)
    found = {}
    for name, prompts in by_prompt.items():
        means = [float(np.mean(values)) for values in prompts.values()]
        yes_or_no = name in YES_OR_NO and {*means} <= {0.0, 1.0}
        share = yes_or_no and intervals.wilson(int(sum(means)), len(means))
        mean = share or intervals.bootstrapped([means], np.mean)
        found["pass@1" if name == "passed" else name] = mean
    return found


def corpus_scores(
    task: Task, examples: Sequence[Example], samples: Iterable[Sample]
) -> dict[str, dict[str, float]]:
    """Return the task's corpus-level scores, such as {decoder: {"bleu": 27.1}}, if it has any."""
    prompts = {example.id: example for example in examples}
    pairs: dict[str, list[tuple[Example, str]]] = {}
    for sample in samples if isinstance(task, CorpusScored) else ():
        if not sample.error:
            pairs.setdefault(sample.decoder, []).append((prompts[sample.example], sample.text))
    found = {name: task.corpus_scores(texts) for name, texts in pairs.items()}  # type: ignore[attr-defined]
    return {name: {key: float(one) for key, one in own.items()} for name, own in found.items()}
