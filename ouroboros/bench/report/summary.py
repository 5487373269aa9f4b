"""From saved samples to one plain dictionary of every metric, which all tables and pictures read.

Invariant: a failed sample is counted and named, never measured; the title says how many prompts
were in fact measured. The formulas are in `metrics` and `intervals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from ouroboros.bench.metrics import intervals, metrics
from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.metrics.sample import METHOD, PLAIN, Sample
from ouroboros.bench.metrics.scoring import score_intervals
from ouroboros.bench.metrics.trees import ProposedTree, tree_metrics
from ouroboros.bench.report.leads import leads
from ouroboros.bench.report.title import device, footnote, incomplete, nature, title
from ouroboros.bench.verdict.audit_report import Row, tally, verdict
from ouroboros.costs import CostModel

RATIOS = ("decode_speedup", "latency_speedup", "latency_speedup_macro")
PEER = "hf_greedy"
TIMED = (
    *("output_throughput", "macro_throughput", "ttft_ms", "tpot_ms", "e2e_latency_s"),
    *("draft_share", "verify_share", "host_share", "host_ms_per_step", "energy_per_token_j"),
    *(f"{ratio}{against}" for against in ("", "_vs_hf") for ratio in RATIOS),
    *("latency_vs_ouroboros", "decode_vs_ouroboros", "ttft_vs_ouroboros"),
)
"""What means nothing where jobs shared the device (a run with `timing` false)."""


def summarise(
    run: Mapping,
    samples: Sequence[Sample],
    scores: Mapping[tuple[str, str, int], Mapping],
    audit: Sequence[Row] = (),
    *,
    priced: CostModel | None = None,
    trees: Mapping[tuple[str, str, int], Sequence[ProposedTree]] | None = None,
) -> dict:
    """Return every metric of every decoder, in the order of the run's config; plain JSON values.

    `priced`: by which costs, if any, counts become costs per token and predicted speedups. `trees`:
    those that were kept, by sample.
    """
    good: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    failed: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    for sample in samples:
        (failed if sample.error else good)[sample.decoder].append(sample)
    rows = {
        name: {
            "samples": len(mine),
            "failed": len(failed[name]),
            "errors": sorted({str(sample.error) for sample in failed[name]}),
            **_decoder_metrics(mine, good, cost_of(run)),
            **_priced_metrics(mine, good, priced, cost_of(run)),
            **_scores(run, name, mine, scores),
            "groups": _groups(mine, good.get(PLAIN, [])),
            "trees": _tree_metrics(mine, trees or {}),
            "verdicts": (found := tally(audit, name)),
            "verdict": verdict(found) if found else None,
        }
        for name, mine in good.items()
    }
    timed = run.get("timing", True)
    return {
        **_facts(run, samples, priced),
        "decoders": rows if timed else {name: _untimed(row) for name, row in rows.items()},
    }


def _facts(run: Mapping, samples: Sequence[Sample], priced: CostModel | None) -> dict:
    """What was measured, where and how completely."""
    timed, cost = run.get("timing", True), run["model"].get("draft_cost")
    prompts = len({sample.example for sample in samples if not sample.error})
    words = f" · predicted by {priced.name}" if priced and not timed else ""
    return {
        "title": title(run, prompts) + words,
        "footnote": footnote(run),
        "status": run["status"],
        "incomplete": incomplete(run, len(samples)),
        "timed": timed,
        "costs": priced and priced.name,
        "resumed": run["resumed"],
        "pools_restored": "carried_pools" in run,
        "samples": len(samples),
        "samples_wanted": run["samples_wanted"],
        "prompts": prompts,
        "device": device(run),
        "nature": nature(run),
        "published": run.get("published"),
        **({} if cost is None else {"draft_cost": cost}),
    }


def cost_of(run: Mapping) -> float:
    """Return what a draft call costs in target calls: the run's own, else the published pair's."""
    cost = run["model"].get("draft_cost")
    return metrics.COST_RATIO if cost is None else cost


def cost_text(summaries: Iterable[Mapping]) -> str:
    """Return the weight of a draft call in calls/token as a legend's number, or words where the
    runs' pairs differ."""
    costs = {f"{one.get('draft_cost', metrics.COST_RATIO):.3g}" for one in summaries}
    return costs.pop() if len(costs) == 1 else "the pair's cost"


def headline(summary: Mapping) -> dict:
    """Return the few numbers per decoder that the last line of stdout carries."""
    keys = ("output_throughput", "acceptance_length", "calls_per_token", "repetition_rate")
    ratios = (
        *("decode_speedup", "latency_speedup", "latency_speedup_vs_hf", "predicted_speedup"),
        *("cost_per_token", "latency_vs_ouroboros", "ttft_vs_ouroboros"),
    )
    return {
        name: {
            **{key: _rounded(row[key]) for key in keys},
            **{key: _rounded(row[key] and row[key]["value"]) for key in ratios},
            "unequal": row["unequal"],
            "verdict": row["verdict"],
            "failed": row["failed"],
        }
        for name, row in summary["decoders"].items()
    }


def _decoder_metrics(
    mine: Sequence[Sample], good: Mapping[str, Sequence[Sample]], cost: float
) -> dict:
    baseline, part = good.get(PLAIN, []), partial(metrics.calls_part, cost_ratio=cost)
    return {
        "new_tokens": sum(len(s.new_tokens) for s in mine),
        "output_throughput": metrics.output_throughput(mine),
        "macro_throughput": metrics.macro_throughput(mine),
        "ttft_ms": metrics.ttft_ms(mine),
        "tpot_ms": metrics.tpot_ms(mine),
        "e2e_latency_s": metrics.e2e_latency_s(mine),
        **_speedups("", baseline, mine),
        **_speedups("_vs_hf", good.get(PEER, []), mine),
        **_step_metrics(mine, cost),
        **_plain({"calls_interval": intervals.pooled(mine, part=part)}),
        "repetition_rate": metrics.mean_repetition_rate(mine),
        "unequal": metrics.unequal(baseline, mine),
        "peak_bytes": max((s.peak_bytes for s in mine if s.peak_bytes), default=None),
        "energy_per_token_j": metrics.energy_per_token_j(mine),
    }


def _priced_metrics(
    mine: Sequence[Sample],
    good: Mapping[str, Sequence[Sample]],
    priced: CostModel | None,
    draft_cost: float,
) -> dict:
    """Costs per token, predicted speedup over greedy, and Ouroboros' lead by every measure."""
    base, ours = (priced.predict_all(own) if priced else [] for own in (good.get(PLAIN, []), mine))
    cost = intervals.pooled(mine, part=priced.cost) if priced and ours else None
    own = {"cost_per_token": cost, "predicted_speedup": intervals.speedup(base, ours)}
    own |= leads(mine, good.get(METHOD, []), priced, draft_cost=draft_cost)
    return {**_plain(own), "unpriced": priced.why_not(mine) if priced and not ours else None}


def _tree_metrics(
    mine: Sequence[Sample], trees: Mapping[tuple[str, str, int], Sequence[ProposedTree]]
) -> dict | None:
    """Of the samples whose trees were kept, and how many these are; None without any."""
    own = [trees[sample.key] for sample in mine if sample.key in trees]
    found = tree_metrics([tree for steps in own for tree in steps])
    return found and {"samples": len(own), **found}


def _step_metrics(mine: Sequence[Sample], cost: float) -> dict:
    steps = metrics.steps_of(mine)
    shares = metrics.phase_shares(steps)
    return {
        "draft_share": shares["draft"],
        "verify_share": shares["verify"],
        "host_share": shares["host"],
        "host_ms_per_step": metrics.host_ms_per_step(steps),
        "acceptance_length": metrics.acceptance_length(steps),
        "tokens_per_target_call": metrics.tokens_per_target_call(steps),
        "draft_calls_per_token": metrics.draft_calls_per_token(steps),
        "target_forwards_per_token": metrics.forwards_per_token(steps, "target"),
        "draft_forwards_per_token": metrics.forwards_per_token(steps, "draft"),
        "nodes_per_token": metrics.nodes_per_token(steps),
        "draft_nodes_per_token": metrics.draft_nodes_per_token(steps),
        "calls_per_token": metrics.calls_per_token(steps, cost),
        "draft_acceptance_rate": metrics.draft_acceptance_rate(steps),
        "scored_per_step": metrics.scored_per_step(steps),
        "acceptance_rate_per_position": metrics.acceptance_rate_per_position(steps),
        "tries_per_position": metrics.tries_per_position(steps),
        "acceptance_histogram": metrics.acceptance_histogram(steps),
        "tokens_by_source": metrics.tokens_by_source(steps),
    }


def _speedups(suffix: str, baseline: Sequence[Sample], mine: Sequence[Sample]) -> dict:
    return _plain(
        {
            f"decode_speedup{suffix}": intervals.speedup(baseline, mine, part=metrics.decode_part),
            f"latency_speedup{suffix}": intervals.speedup(baseline, mine),
            f"latency_speedup_macro{suffix}": intervals.macro_speedup(baseline, mine),
        }
    )


def _groups(mine: Sequence[Sample], baseline: Sequence[Sample]) -> dict[str, dict]:
    """The headline numbers of each group of prompts; {} where the task has no groups."""
    names = dict.fromkeys(s.group for s in mine if s.group)
    found = {}
    for name in names:
        ours = [s for s in mine if s.group == name]
        base = [s for s in baseline if s.group == name]
        found[name] = {
            "samples": len(ours),
            "output_throughput": metrics.output_throughput(ours),
            "acceptance_length": metrics.acceptance_length(metrics.steps_of(ours)),
            **_plain({"latency_speedup": intervals.speedup(base, ours)}),
        }
    return found


def _untimed(row: Mapping) -> dict:
    """A decoder's row, or a group's, without what is derived from seconds."""
    groups = {name: _untimed(group) for name, group in row.get("groups", {}).items()}
    plain = {key: None if key in TIMED else value for key, value in row.items()}
    return plain | ({"groups": groups} if "groups" in row else {})


def _scores(
    run: Mapping,
    decoder: str,
    mine: Sequence[Sample],
    scores: Mapping[tuple[str, str, int], Mapping],
) -> dict[str, dict]:
    """Means over prompts with their intervals, and scores of all completions together (those of
    parts are no scores of the whole)."""
    found = score_intervals(mine, scores)
    whole = run.get("corpus_scores", {}).get(decoder, {}) if run.get("parts", 1) == 1 else {}
    means = {name: one.value for name, one in found.items()}
    return {"scores": means | whole, "score_intervals": _plain(found)}


def _plain(found: Mapping[str, Interval | None]) -> dict[str, dict | None]:
    return {name: None if one is None else asdict(one) for name, one in found.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
