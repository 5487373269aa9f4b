"""From saved samples to one plain dictionary of every metric, which all tables and pictures read.

Invariant: a failed sample is counted and named, never measured; the title says how many prompts
were in fact measured. The formulas are in `metrics` and `intervals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from ouroboros.bench.measure import intervals, metrics
from ouroboros.bench.measure.intervals import Interval
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.verdict.audit_report import Row, tally, verdict

RATIOS = ("decode_speedup", "latency_speedup", "latency_speedup_macro")
BASELINE, PEER, METHOD = "greedy", "hf_greedy", "ouroboros"
TIMED = (
    *("output_throughput", "macro_throughput", "ttft_ms", "tpot_ms", "e2e_latency_s"),
    *("draft_share", "verify_share", "host_share", "host_ms_per_step", "energy_per_token_j"),
    *(f"{ratio}{against}" for against in ("", "_vs_hf") for ratio in RATIOS),
)
"""What means nothing where jobs shared the device (a run with `timing` false)."""


def summarise(
    run: Mapping,
    samples: Sequence[Sample],
    scores: Mapping[tuple[str, str, int], Mapping],
    audit: Sequence[Row] = (),
) -> dict:
    """Return every metric of every decoder, in the order of the run's config; plain JSON values."""
    good: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    failed: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    for sample in samples:
        (failed if sample.error else good)[sample.decoder].append(sample)
    rows = {
        name: {
            **_counts(mine, failed[name]),
            **_decoder_metrics(mine, good, cost_of(run)),
            "scores": metrics.task_scores(mine, scores) | _corpus_scores(run, name),
            "score_intervals": _plain(intervals.score_intervals(mine, scores)),
            "groups": _groups(mine, good.get(BASELINE, [])),
            "verdicts": (found := tally(audit, name)),
            "verdict": verdict(found) if found else None,
        }
        for name, mine in good.items()
    }
    timed, cost = run.get("timing", True), run["model"].get("draft_cost")
    measured = {sample.example for mine in good.values() for sample in mine}
    return {
        "title": title(run, len(measured)),
        "footnote": footnote(run),
        "status": run["status"],
        "incomplete": incomplete(run, len(samples)),
        "timed": timed,
        "resumed": run["resumed"],
        "pools_restored": "carried_pools" in run,
        "samples": len(samples),
        "samples_wanted": run["samples_wanted"],
        "prompts": len(measured),
        "device": device(run),
        "nature": nature(run),
        "published": run.get("published"),
        **({} if cost is None else {"draft_cost": cost}),
        "decoders": rows if timed else {name: _untimed(row) for name, row in rows.items()},
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


def title(run: Mapping, prompts: int) -> str:
    """Return one line: task, prompts measured, model (and what it stands for), dtype, machine."""
    model, sampling = run["model"], run["sampling"]
    standin = model.get("standin")
    shape = f" as a stand-in, shapes {standin['target']} / {standin['draft']}" if standin else ""
    rehearsal = " (a rehearsal)" if nature(run) == "rehearsal" else ""
    heat = f"T={sampling['temperature']:g}" if sampling["temperature"] else "greedy (T=0)"
    penalty = sampling.get("repetition_penalty", 1.0)
    heat += "" if penalty == 1.0 else f", repetition penalty {penalty:g}"
    kept = "".join(f", {role} {what}" for role, what in (model.get("quantised") or {}).items())
    kept += "" if model.get("engine", "eager") == "eager" else f", {model['engine']} engine"
    wanted = run["task"]["prompts"]
    counted = f"{prompts} prompts" if prompts == wanted else f"{prompts} of {wanted} prompts"
    return (
        f"{run['task']['name']}, {counted} x {run['max_new']} tokens · "
        f"{model['name']} pair{shape}{rehearsal} · {model['dtype']}{kept} · "
        f"{heat} · batch size 1 · {device(run)}"
    )


def nature(run: Mapping) -> str:
    """Return what the measured model is: "model", "stand-in" or "rehearsal".

    A stand-in computes a small model inside a large shape. A rehearsal has published numbers to
    compare with but runs on the pair that ships with the project.
    """
    model = run["model"]
    if model.get("standin"):
        return "stand-in"
    small = str(model.get("target", "")).startswith("reference/")
    return "rehearsal" if run.get("published") and small else "model"


def incomplete(run: Mapping, samples: int) -> bool:
    """Say whether samples are missing or the run never ended."""
    return samples < run["samples_wanted"] or run["status"] != "finished"


def device(run: Mapping) -> str:
    """Return the name of the GPU or CPU that ran the models; of each, where parts were merged."""
    return " + ".join(dict.fromkeys(_device(part, run["model"]) for part in _machines(run)))


def footnote(run: Mapping) -> str:
    """Return one line: host and versions."""
    versions = run["provenance"]["versions"]
    hosts = (
        f"{m['cpu']}, {m['cores']} cores, {m['threads']} thread{'s' * (m['threads'] > 1)}"
        for m in _machines(run)
    )
    parts = f"{run['parts']} parts, merged; " if run.get("parts", 1) > 1 else ""
    return (
        f"{parts}{' + '.join(dict.fromkeys(hosts))}; "
        f"torch {versions['torch']}, transformers {versions['transformers']}"
    )


def headline(summary: Mapping) -> dict:
    """Return the few numbers per decoder that the last line of stdout carries."""
    keys = ("output_throughput", "acceptance_length", "calls_per_token", "repetition_rate")
    ratios = ("decode_speedup", "latency_speedup", "latency_speedup_vs_hf")
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


def _counts(good: Sequence[Sample], failed: Sequence[Sample]) -> dict:
    errors = sorted({sample.error for sample in failed if sample.error})
    return {"samples": len(good), "failed": len(failed), "errors": errors}


def _decoder_metrics(
    mine: Sequence[Sample], good: Mapping[str, Sequence[Sample]], cost: float
) -> dict:
    baseline, part = good.get(BASELINE, []), partial(metrics.calls_part, cost_ratio=cost)
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
        **_plain(
            {
                "calls_interval": intervals.pooled(mine, part=part),
                "calls_vs_ouroboros": intervals.speedup(mine, good.get(METHOD, []), part=part),
            }
        ),
        "repetition_rate": metrics.mean_repetition_rate(mine),
        "unequal": metrics.unequal(baseline, mine),
        "peak_bytes": max((s.peak_bytes for s in mine if s.peak_bytes), default=None),
        "energy_per_token_j": metrics.energy_per_token_j(mine),
    }


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
    names = dict.fromkeys(group for s in mine if (group := _group(s)))
    found = {}
    for name in names:
        ours = [s for s in mine if _group(s) == name]
        base = [s for s in baseline if _group(s) == name]
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


def _corpus_scores(run: Mapping, decoder: str) -> dict[str, float]:
    """Scores of all completions together; those of parts are no scores of the whole."""
    whole = run.get("parts", 1) == 1
    return run.get("corpus_scores", {}).get(decoder, {}) if whole else {}


def _group(sample: Sample) -> str:
    return getattr(sample, "group", "")


def _machines(run: Mapping) -> list[Mapping]:
    return run.get("machines") or [run["provenance"]["machine"]]


def _device(machine: Mapping, model: Mapping) -> str:
    if model["device"].startswith("cuda") and machine["gpus"]:
        return machine["gpus"][0]
    return f"{machine['cpu']}, {machine['cores']} cores"


def _plain(found: Mapping[str, Interval | None]) -> dict[str, dict | None]:
    return {name: None if one is None else asdict(one) for name, one in found.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
