"""Every metric, one entry each. To add one, add an entry here; but for its
line in docs/glossary.md, nothing else lists metrics.

Words: a *step* is one turn of the loop, which is one target call; *accepted* excludes the bonus
token and *new* includes it. See `registry` for an entry's fields and what a formula's parameters
are, `intervals` for the 95 % intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ouroboros.bench.metrics.intervals import (
    COST_RATIO,
    Interval,
    calls_part,
    decode_part,
    mean_of,
    pooled,
    prompt_speedups,
    speedup,
    ttft_part,
    wilson,
)
from ouroboros.bench.metrics.registry import Metric, Registry
from ouroboros.bench.metrics.sample import Sample, acceptance_record, steps_of
from ouroboros.bench.tasks.task import YES_OR_NO, CorpusScored, Example, Task
from ouroboros.trace import StepRecord

Samples = Sequence[Sample]
REAL_TEXT = (0.09, 0.15)
"""Repetition rates of real models' greedy answers: Llama-2-70B on MT-Bench 9 %, Vicuna-7B on
Spec-Bench 13 %, a 33B code model on HumanEval 14 %. Text that repeats itself more flatters every
decoder that drafts from the text."""


def over_steps(
    top: str, bottom: str = "", *, where: str = "", recorded: str = "", times=1.0, plus=0.0
) -> Callable:
    """Return the formula `plus` + `times` x sum of a step's `top` / sum of its `bottom`.

    Only steps with a non-zero `where` count; without `bottom`, divide by the number of steps. None
    without steps, and where a step has no `recorded`.
    """

    def formula(samples: Samples) -> float | None:
        steps = [s for s in steps_of(samples) if not where or getattr(s, where)]
        whole = sum(getattr(s, bottom) for s in steps) if bottom else len(steps)
        if not whole or (recorded and not all(getattr(s, recorded) for s in steps)):
            return None
        return plus + times * sum(getattr(s, top) for s in steps) / whole

    return formula


def over_samples(part: Callable[[Sample], tuple[float, float]], *, times: float = 1) -> Callable:
    """Return the formula `times` x sum of a sample's first part / sum of its second."""

    def formula(samples: Samples) -> float | None:
        tops, bottoms = zip(*map(part, samples), strict=True) if samples else ((), ())
        return times * sum(tops) / sum(bottoms) if sum(bottoms) else None

    return formula


def mean(value: Callable[[Sample], float | None], *, times: float = 1) -> Callable:
    """Return the formula `times` x the mean of a sample's value, where it is known."""

    def formula(samples: Samples) -> float | None:
        known = [found for sample in samples if (found := value(sample)) is not None]
        return times * float(np.mean(known)) if known else None

    return formula


def over_greedy(**options) -> Callable:
    """Return the formula of the speedup over greedy; `options` are `speedup`'s. Here and below only
    equal completions count, unless the decoder is `in_law`: its texts differ by design."""
    return lambda samples, greedy, in_law=False: speedup(
        greedy, samples, equal=not in_law, **options
    )


def over_ouroboros(**options) -> Callable:
    """Return the formula of the decoder's amount per token / Ouroboros'."""
    return lambda samples, ouroboros, in_law=False: speedup(
        samples, ouroboros, equal=not in_law, **options
    )


def predicted(baseline: Samples, samples: Samples, costs, in_law: bool) -> Interval | None:
    """Return the baseline's predicted seconds per token / the decoder's."""
    priced = costs.predict_all(baseline), costs.predict_all(samples)
    return speedup(*priced, equal=not in_law)


def cost(samples: Samples, ouroboros: Samples, costs, in_law=False) -> Interval | None:
    """Return the decoder's cost per token / Ouroboros'; None beyond what was measured."""
    known = costs.predict_all(samples) and costs.predict_all(ouroboros)
    return speedup(samples, ouroboros, part=costs.cost, equal=not in_law) if known else None


def each_prompt(pool: Callable[[np.ndarray], float]) -> Callable:
    """Return the formula that pools the speedups over greedy of single prompts."""

    def formula(samples: Samples, greedy: Samples, in_law: bool = False) -> float | None:
        ratios = prompt_speedups(greedy, samples, equal=not in_law)
        return float(pool(ratios)) if len(ratios) else None

    return formula


def percentile(share: float, value: Callable[[Sample], float | None]) -> Callable:
    """Return the formula of a percentile, in milliseconds, of a completion's seconds."""

    def formula(samples: Samples) -> float | None:
        known = [found for sample in samples if (found := value(sample)) is not None]
        return 1e3 * float(np.percentile(known, share)) if known else None

    return formula


def decode_pace(sample: Sample) -> float | None:
    """Return a completion's seconds per token after its first step."""
    seconds, tokens = decode_part(sample)
    return seconds / tokens if tokens else None


def phase_shares(steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Return the shares of the time in steps spent in the draft, in the target and on the host;
    None for another engine, whose steps have no scored nodes."""
    steps = [step for step in steps if step.scored]
    totals = {p: sum(getattr(s, f"{p}_s") for s in steps) for p in ("draft", "verify", "host")}
    whole = sum(totals.values())
    return {name: seconds / whole if whole else None for name, seconds in totals.items()}


def calls_per_token(samples: Samples, draft_cost: float = COST_RATIO) -> Interval | None:
    """Return (target calls + draft_cost x draft calls) / new tokens."""
    found = pooled(samples, part=partial(calls_part, cost_ratio=draft_cost))
    if found is None:
        return None
    steps = steps_of(samples)  # summed as integers first: exact, whatever the order of prompts
    target = sum(s.target_forwards or 1 for s in steps)
    calls = target + draft_cost * sum(s.draft_forwards or s.draft_calls for s in steps)
    return replace(found, value=calls / sum(s.new for s in steps))


def tries_per_position(samples: Samples) -> list[int]:
    """Return at index k - 1: how many steps drafted k tokens or more."""
    drafted = [s.drafted for s in steps_of(samples)]
    return [sum(d >= k for d in drafted) for k in range(1, max(drafted, default=0) + 1)]


def acceptance_rate_per_position(samples: Samples) -> list[float]:
    """Return at index k - 1: of the steps that drafted k or more tokens, the share that accepted
    k."""
    accepted = [min(s.accepted, s.drafted) for s in steps_of(samples)]
    tries = enumerate(tries_per_position(samples), start=1)
    return [sum(a >= k for a in accepted) / tried for k, tried in tries]


def unequal(samples: Samples, greedy: Samples) -> int | None:
    """Return how many samples differ from greedy's in tokens or length; None without a pair."""
    expected = {(s.example, s.repeat): s.new_tokens for s in greedy}
    pairs = [(expected[key], s) for s in samples if (key := (s.example, s.repeat)) in expected]
    return sum(tokens != s.new_tokens for tokens, s in pairs) if pairs else None


def repetition(tokens: Sequence[int], n: int = 4) -> float | None:
    """Return the share of a completion's n-grams that occurred before in it.

    >>> repetition([1, 2, 3, 4, 1, 2, 3, 4])
    0.2
    """
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return (len(grams) - len(set(grams))) / len(grams) if grams else None


def calibrated(key: str) -> Callable:
    """Return the formula that takes a figure of the trees' calibration."""
    return lambda trees: (trees["calibration"] or {}).get(key)


SUMS = "sum / sum"
RATIO: dict = {"unit": "x", "suffix": "x", "better": "higher"}
PAIRED: dict = {**RATIO, "interval": True, "pooled": "sum / sum, paired"}
LEAD: dict = {**PAIRED, "better": "lower"}
MEAN: dict = {"pooled": "mean over prompts"}
RATE: dict = {"unit": "tokens/s", "better": "higher", "digits": 1, "timed": True, **MEAN}
SHARE: dict = {"unit": "%", "digits": 0, "scale": 100.0, "suffix": " %"}
PHASE: dict = {"timed": True, "tables": "time", **SHARE}
TIME: dict = {"timed": True, "better": "lower", "tables": "time"}
PERCENTILE: dict = {**TIME, "unit": "ms", "digits": 1, "pooled": "percentile over completions"}
COUNT: dict = {"better": "lower", "tables": "counts"}
TREE: dict = {"unit": "nodes", "pooled": "mean over trees", "digits": 1, "tables": "trees"}
NODE: dict = {"pooled": "mean over nodes", "tables": "trees"}
LOSS: dict = {**NODE, "better": "lower", "digits": 3}

# fmt: off
METRICS = Registry(
    Metric("samples", "samples", lambda samples: len(samples),
           "Completions that were measured; failed ones are left out.",
           pooled="count", digits=0, by_group=True, tables="speed"),
    Metric("failed", "failed", lambda failed: len(failed), "Completions that failed.",
           pooled="count", better="lower", digits=0, tables="headline"),
    Metric("new_tokens", "new tokens", lambda samples: sum(len(s.new_tokens) for s in samples),
           "Generated tokens of all completions.", pooled="sum", digits=0),

    # Speed
    Metric("output_throughput", "tokens/s", over_samples(lambda s: (len(s.new_tokens), s.wall_s)),
           "New tokens / seconds from the call to the last token, prefill included.",
           tables="default speed headline comparison", by_group=True, **{**RATE, "pooled": SUMS}),
    Metric("macro_throughput", "mean tokens/s",
           mean(lambda s: len(s.new_tokens) / s.wall_s if s.wall_s else None),
           "Mean over prompts of new tokens / seconds.", **RATE),
    Metric("latency_speedup", "speedup", over_greedy(),
           "Greedy's seconds per token / the decoder's, equal completions, with prefill.",
           timed=True, by_group=True, tables="default speed headline comparison groups", **PAIRED),
    Metric("predicted_speedup", "predicted speedup",
           lambda samples, greedy, costs, in_law: predicted(greedy, samples, costs, in_law),
           "Speedup over greedy at the run's costs; a fit where these were measured in the run.",
           tables="default speed headline comparison groups", by_group=True,
           instead_of="latency_speedup", **PAIRED),
    Metric("latency_speedup_macro", "macro speedup", over_greedy(macro=True),
           "Geometric mean over prompts of each prompt's speedup over greedy.",
           timed=True, tables="speed comparison", **{**PAIRED, "pooled": "geometric mean"}),
    Metric("decode_speedup", "decode speedup", over_greedy(part=decode_part),
           "Speedup over greedy in time per token after the first step (without the prefill).",
           timed=True, tables="speed headline", **PAIRED),
    Metric("slower_share", "slower prompts", each_prompt(lambda ratios: (ratios < 1).mean()),
           "Share of the prompts that took longer than with greedy.",
           timed=True, better="lower", tables="speed headline", by_group=True,
           **{**SHARE, "pooled": "share of prompts"}),
    Metric("worst_speedup", "worst prompt", each_prompt(np.min),
           "The smallest speedup over greedy of a single prompt.", timed=True, by_group=True,
           tables="speed headline comparison", **{**RATIO, "pooled": "minimum"}),

    # Every decoder against Ouroboros
    Metric("latency_vs_ouroboros", "vs Ouroboros", over_ouroboros(),
           "The decoder's seconds per token / Ouroboros'; above 1 Ouroboros is faster.",
           timed=True, tables="default lead headline comparison", **LEAD),
    Metric("predicted_vs_ouroboros", "predicted vs Ouroboros",
           lambda samples, ouroboros, costs, in_law: predicted(samples, ouroboros, costs, in_law),
           "The decoder's predicted seconds per token / Ouroboros', same prompts.",
           tables="default lead comparison", instead_of="latency_vs_ouroboros", **LEAD),
    Metric("cost_vs_ouroboros", "cost vs Ouroboros", cost,
           "The decoder's cost per token / Ouroboros', same prompts.", tables="lead", **LEAD),
    Metric("calls_vs_ouroboros", "calls vs Ouroboros",
           lambda samples, ouroboros, draft_cost, in_law: speedup(
               samples, ouroboros, part=partial(calls_part, cost_ratio=draft_cost),
               equal=not in_law),
           "The decoder's calls per token / Ouroboros', same prompts.",
           tables="default lead", instead_of="latency_vs_ouroboros predicted_vs_ouroboros", **LEAD),
    Metric("decode_vs_ouroboros", "decode vs Ouroboros", over_ouroboros(part=decode_part),
           "The decoder's seconds per token after the first step / Ouroboros', same prompts.",
           timed=True, tables="lead", **LEAD),
    Metric("ttft_vs_ouroboros", "TTFT vs Ouroboros", over_ouroboros(part=ttft_part),
           "The decoder's mean TTFT / Ouroboros', same prompts.",
           timed=True, tables="lead headline", **LEAD),

    # Time and memory
    Metric("ttft_ms", "TTFT (ms)", mean(lambda s: s.ttft_s, times=1e3),
           "Time to first token: from the call to the end of the first step, prefill included.",
           unit="ms", digits=0, **{**MEAN, **TIME, "tables": "default time"}),
    Metric("tpot_ms", "TPOT (ms)", over_samples(decode_part, times=1e3),
           "Time per token after the first step: (latency - TTFT) / (tokens - the first step's).",
           unit="ms", **TIME),
    Metric("median_ttft_ms", "TTFT p50 (ms)", percentile(50, lambda s: s.ttft_s),
           "Median time to first token of a completion.", **PERCENTILE),
    Metric("p99_ttft_ms", "TTFT p99 (ms)", percentile(99, lambda s: s.ttft_s),
           "99th percentile of the time to first token.", **PERCENTILE),
    Metric("median_tpot_ms", "TPOT p50 (ms)", percentile(50, decode_pace),
           "Median over completions of the time per token after the first step.", **PERCENTILE),
    Metric("p99_tpot_ms", "TPOT p99 (ms)", percentile(99, decode_pace),
           "99th percentile over completions of the time per token after the first step.",
           **PERCENTILE),
    Metric("e2e_latency_s", "E2E (s)", mean(lambda s: s.wall_s),
           "Seconds from the call to the last token of a completion, prefill included.",
           unit="s", **MEAN, **TIME),
    Metric("latency_speedup_vs_hf", "vs transformers",
           lambda samples, hf_greedy, in_law: speedup(hf_greedy, samples, equal=not in_law),
           "Speedup over transformers' own greedy decoding, prefill included.",
           timed=True, tables="time headline", **PAIRED),
    Metric("draft_share", "draft time", lambda samples: phase_shares(steps_of(samples))["draft"],
           "Share of the time in steps spent in the draft model.", **PHASE),
    Metric("verify_share", "verify time", lambda samples: phase_shares(steps_of(samples))["verify"],
           "Share of the time in steps spent in the target model.", **PHASE),
    Metric("host_share", "host time", lambda samples: phase_shares(steps_of(samples))["host"],
           "Share of the time in steps spent outside both models, in Python.", **PHASE),
    Metric("host_ms_per_step", "host ms/step", over_steps("host_s", where="scored", times=1e3),
           "Milliseconds per step outside both models (unavailable for another engine).",
           unit="ms", **TIME),
    Metric("peak_bytes", "peak GiB",
           lambda samples: max((s.peak_bytes for s in samples if s.peak_bytes), default=None),
           "Largest peak of device memory of any completion, summed over the GPUs in use.",
           unit="bytes", pooled="maximum", better="lower", digits=1, scale=2**-30, tables="time"),
    Metric("energy_per_token_j", "J/token",
           over_samples(lambda s: (s.energy_j or 0, len(s.new_tokens) * (s.energy_j is not None))),
           "Joules per new token, prefill included, over completions whose energy is known.",
           unit="J/token", **TIME),

    # Calls and acceptance
    Metric("accepted_per_step", "accepted/step", over_steps("accepted", where="drafted"),
           "Accepted draft tokens per step that had a draft; the bonus token does not count.",
           unit="tokens/step", better="higher", tables="default"),
    Metric("acceptance_length", "acceptance length",
           over_steps("accepted", where="drafted", plus=1),
           "New tokens per step that had a draft: 1 + accepted/step, the bonus included (as vLLM).",
           unit="tokens/step", better="higher", by_group=True, tables="counts headline"),
    Metric("tokens_per_target_call", "tokens/call", over_steps("new"),
           "New tokens / target calls; the prefill is part of the first call.",
           unit="tokens/call", better="higher", tables="counts"),
    Metric("cost_per_token", "cost/token",
           lambda samples, costs: (
               pooled(samples, part=costs.cost) if costs.predict_all(samples) else None),
           "Time of all calls per new token at the run's costs, in target calls of one node.",
           interval=True, **{**COUNT, "digits": 3, "tables": "counts headline comparison"}),
    Metric("calls_per_token", "calls/token", calls_per_token,
           "(Target calls + draft cost x draft calls) / new tokens, whatever a call scores.",
           interval=True, instead_of="output_throughput",
           **{**COUNT, "digits": 3, "tables": "default counts headline comparison"}),
    Metric("draft_calls_per_token", "draft calls/token", over_steps("draft_calls", "new"),
           "Draft calls / new tokens.", **COUNT),
    Metric("target_forwards_per_token", "target forwards/token",
           over_steps("target_forwards", "new", recorded="target_forwards"),
           "Forward passes of the target / new tokens, where recorded.", digits=3, **COUNT),
    Metric("draft_forwards_per_token", "draft forwards/token",
           over_steps("draft_forwards", "new", recorded="target_forwards"),
           "Forward passes of the draft / new tokens, where recorded.", digits=3, **COUNT),
    Metric("nodes_per_token", "nodes/token", over_steps("scored", "new", where="scored"),
           "Nodes that the target scored, the prompt excluded / new tokens.", **COUNT),
    Metric("draft_nodes_per_token", "draft nodes/token",
           over_steps("draft_scored", "new", recorded="target_forwards"),
           "Nodes that the draft scored / new tokens, where recorded.", **COUNT),
    Metric("scored_per_step", "nodes/call", over_steps("scored", where="scored"),
           "Nodes that the target scored per call, root and probes included, the prompt excluded.",
           unit="nodes/call", digits=1, tables="counts"),
    Metric("draft_acceptance_rate", "draft accepted", over_steps("accepted", "drafted"),
           "Accepted / drafted tokens, where a step's drafted is the depth of its deepest branch.",
           better="higher", tables="counts", **SHARE),
    Metric("acceptance_rate_per_position", "acceptance by position", acceptance_rate_per_position,
           "Of the steps that drafted k tokens or more, the share that accepted k (as vLLM).",
           pooled="per position", scalar=False),
    Metric("tries_per_position", "tries by position", tries_per_position,
           "Steps that drafted k tokens or more: the denominators of acceptance by position.",
           pooled="per position", scalar=False),
    Metric("speculative_decoding", "acceptance record",
           lambda samples: acceptance_record(steps_of(samples)),
           "Acceptance in the fields of vLLM's per-request records, summed over completions.",
           scalar=False),
    Metric("acceptance_histogram", "accepted histogram",
           lambda samples: dict(sorted(Counter(s.accepted for s in steps_of(samples)).items())),
           "Steps by the number of draft tokens that they accepted.",
           pooled="histogram", scalar=False),
    Metric("tokens_by_source", "tokens by source",
           lambda samples: dict(
               Counter(x or "unknown" for s in steps_of(samples) for x in s.sources).most_common()),
           "New tokens by who proposed them; corrections and bonus tokens are the target's.",
           pooled="sum", scalar=False),

    # Is it lossless, and what the text is like
    Metric("repetition_rate", "repetition", mean(lambda s: repetition(s.new_tokens)),
           "Share of 4-grams that occurred before in the completion; 9 to 15 % in real answers.",
           tables="speed headline", **MEAN, **SHARE),
    Metric("unequal", "unequal", unequal,
           "Completions whose tokens differ from greedy's for the same prompt and repeat.",
           pooled="count", better="lower", digits=0, tables="speed headline"),
    Metric("verdict", "verdict", lambda audit: audit,
           "The audit of unequal completions: identical, ties (rounding explains them), BUG, or in "
           "law (rejection sampling keeps the distribution only); greedy is the reference.",
           pooled="count", scalar=False, tables="default speed headline"),

    # Proposed trees, where they were recorded
    Metric("trees", "trees", lambda trees: trees,
           "Counts of the proposed trees by size, depth and source, and their calibration.",
           pooled="per step", scalar=False),
    Metric("tree_steps", "tree steps", lambda trees: trees["steps"],
           "Steps whose proposed tree was recorded.", pooled="count", digits=0, tables="trees"),
    Metric("tree_nodes", "nodes", lambda trees: trees["nodes"],
           "Nodes of a proposed tree, the root excluded.", **TREE),
    Metric("tree_depth", "depth", lambda trees: trees["depth"],
           "Depth of a proposed tree's deepest node.", **TREE),
    Metric("tree_leaves", "leaves", lambda trees: trees["leaves"],
           "Leaves of a proposed tree.", **TREE),
    Metric("estimated_acceptance", "estimated", calibrated("thought"),
           "Estimated acceptance of the nodes whose parent was accepted.", **NODE, **SHARE),
    Metric("actual_acceptance", "accepted", calibrated("came"),
           "Share of the nodes whose parent was accepted that were accepted too.", **NODE, **SHARE),
    Metric("tree_log_loss", "log loss", calibrated("log_loss"),
           "Log loss (natural logarithms) of the estimated acceptance.", **LOSS),
    Metric("constant_log_loss", "constant's loss", calibrated("log_loss_of_the_mean"),
           "Log loss of a constant estimate, the mean acceptance.", **LOSS),
    Metric("tree_brier", "Brier", calibrated("brier"),
           "Brier score (mean squared error) of the estimated acceptance.", **LOSS),
)
# fmt: on


def score_metric(name: str) -> Metric:
    """Return the metric of a task's score: "score.pass@1", with the heading "pass@1"."""
    look = {"better": "higher", "digits": 3, "interval": True, "tables": "default speed", **MEAN}
    return Metric(f"score.{name}", name, lambda: None, f"The task's score {name}.", **look)


def score_intervals(
    samples: Samples, scores: Mapping[tuple[str, str, int], Mapping[str, float]]
) -> dict[str, Interval]:
    """Return means over prompts of a task's scores; "passed" becomes pass@1.

    The interval is Wilson's for scores in `YES_OR_NO` of prompts without repeats; else prompts are
    resampled.
    """
    by_prompt: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for name, value in scores.get(sample.key, {}).items():
            by_prompt.setdefault(name, {}).setdefault(sample.example, []).append(value)
    intervals = {}
    for name, prompts in by_prompt.items():
        means = [float(np.mean(values)) for values in prompts.values()]
        yes_or_no = name in YES_OR_NO and all(len(values) == 1 for values in prompts.values())
        mean = wilson(int(sum(means)), len(means)) if yes_or_no else mean_of(means)
        intervals["pass@1" if name == "passed" else name] = mean
    return intervals


def corpus_scores(
    task: Task, examples: Sequence[Example], samples: Iterable[Sample]
) -> dict[str, dict[str, float]]:
    """Return the task's scores of all completions together, such as corpus BLEU, by decoder; {}
    where the task has none."""
    if not isinstance(task, CorpusScored):
        return {}
    prompts = {example.id: example for example in examples}
    pairs: dict[str, list[tuple[Example, str]]] = {}
    for sample in samples:
        if not sample.error:
            pairs.setdefault(sample.decoder, []).append((prompts[sample.example], sample.text))
    return {name: task.corpus_scores(texts) for name, texts in pairs.items()}
