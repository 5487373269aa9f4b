"""Where the time goes: calls against the machine's floor, steps by phase, as data and as tables.

A pure function of costs and samples. Invariant: what another engine does not tell apart is None,
never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ouroboros.bench.metrics.sample import Sample, step_s
from ouroboros.costs import Costs, Surface
from ouroboros.bench.report.tables import as_text

PHASES = ("draft", "verify", "host")
LEGEND = """\
Calls: the median from the start of `score` to the arrival of its argmax, on random branching trees,
± half the distance between the quartiles. Floor: the bytes that a call must read (every weight but
the embedding table, and the keys and values of the context) at the measured copy bandwidth, which
counts bytes read plus bytes written; reading alone may be faster, and a model that fits in a cache
is not bound by it, so more than 100 % is possible. Steps: means over all steps but each prompt's
first, which holds the prefill. draft and verify: time in the two models, each up to the arrival of
its result; host: the rest of the step. wait: the part of draft and verify between the hand-over of
a call and its result (on a CPU that is only the choice of tokens). transformers' own generation
(hf_) does not tell its phases apart."""


def time_facts(costs: Costs, samples: Sequence[Sample]) -> dict:
    """Return everything as plain JSON values: "calls" of each model, "steps" of each decoder."""
    surfaces = {"target": costs.target, "draft": costs.draft}
    names = dict.fromkeys(sample.decoder for sample in samples)
    mine = {name: [s for s in samples if s.decoder == name] for name in names}
    return {
        "copy_gb_per_s": costs.copy_bytes_per_s and costs.copy_bytes_per_s / 1e9,
        "calls": {role: _calls(costs, role, s) for role, s in surfaces.items() if s is not None},
        "steps": {name: step_facts(found) for name, found in mine.items()},
    }


def step_facts(samples: Sequence[Sample]) -> dict:
    """Return means over the steps of one decoder, each sample's first left out.

    `ms` by phase, `share` of the step by phase; `wait_ms` and `wait_share` are a part of draft and
    verify. Phases of another engine are None.
    """
    failed = [sample for sample in samples if sample.error]
    samples = [sample for sample in samples if not sample.error]
    later = [step for sample in samples for step in sample.steps[1:]]
    first = [step_s(sample.steps[0]) for sample in samples if sample.steps]
    ours = bool(later) and all(step.scored for step in later)
    calls, drafted = (sum(getattr(s, k) for s in later) for k in ("draft_calls", "draft_scored"))
    ms = {name: 1e3 * _mean([getattr(s, f"{name}_s") for s in later]) for name in PHASES}
    total_ms = 1e3 * _mean([step_s(step) for step in later])
    wait_ms = 1e3 * _mean([step.wait_s for step in later])
    return {
        "steps": len(later),
        "errors": sorted({str(sample.error) for sample in failed}),
        "step_ms": total_ms if later else None,
        "first_step_ms": 1e3 * _mean(first) if first else None,
        "tokens_per_step": _mean([step.new for step in later]) if later else None,
        "ms": ms if ours else None,
        "share": {name: part / total_ms for name, part in ms.items()} if ours else None,
        "wait_ms": wait_ms if ours else None,
        "wait_share": wait_ms / total_ms if ours else None,
        "draft_calls_per_step": calls / len(later) if later else None,
        "nodes_per_step": _mean([step.scored for step in later]) if ours else None,
        "nodes_per_draft_call": drafted / calls if ours and calls else None,
    }


def call_frame(calls: Mapping) -> pd.DataFrame:
    """One model's calls: a row for each size of tree, a column for each context."""
    sizes = sorted({row["nodes"] for row in calls["points"]})
    return pd.DataFrame(
        [
            {"nodes": str(size)}
            | {
                f"{row['context']} tokens": _with_spread(row)
                for row in calls["points"]
                if row["nodes"] == size
            }
            for size in sizes
        ]
    )


def floor_frame(facts: Mapping) -> pd.DataFrame:
    """The smallest call of each model at each context, against its floor."""
    return pd.DataFrame(
        [
            {
                "model": role,
                "context": str(row["context"]),
                "nodes": str(row["nodes"]),
                "MB to read": number(row["read_mb"], 0),
                "floor ms": number(row["floor_ms"], 2),
                "call ms": number(row["ms"], 2),
                "of the floor": percent(row["floor_share"]),
            }
            for role, calls in facts["calls"].items()
            for row in calls["points"]
            if row["nodes"] == calls["points"][0]["nodes"]
        ]
    )


def step_frame(facts: Mapping) -> pd.DataFrame:
    """The step of each decoder."""
    return pd.DataFrame([_step_row(name, row) for name, row in facts["steps"].items()])


def to_markdown(facts: Mapping) -> str:
    """Return profile.md: title, tables, operators if there are any, and the legend."""
    copies = f"Copy bandwidth: {number(facts['copy_gb_per_s'], 1)} GB/s, read plus written."
    parts = [f"# {facts['title']}", facts["footnote"], copies, as_text(floor_frame(facts))]
    for role, calls in facts["calls"].items():
        parts += [f"Milliseconds of a call of the {role}:", as_text(call_frame(calls))]
    parts += ["Milliseconds of a step:", as_text(step_frame(facts)), LEGEND]
    for name, found in facts.get("operators", {}).items():
        parts += [f"## {name}: {found['steps']} steps under the profiler, which slows them"]
        for what in ("device", "host", "python"):
            if found[what]:
                frame = pd.DataFrame([_operator_row(row) for row in found[what]])
                parts += [OPERATORS[what], as_text(frame)]
    return "\n\n".join(parts) + "\n"


OPERATORS = {
    "device": "Operators by their own time on the device:",
    "host": "Operators by their own time on the CPU:",
    "python": "Python functions by their own time, the clock stopped inside the models' calls:",
}


def _calls(costs: Costs, role: str, surface: Surface) -> dict:
    foot = costs.footprints.get(role)
    points = []
    for context, row in surface.ms.items():
        floor_ms = costs.floor_ms(role, int(context))
        for nodes, ms in row.items():
            points.append(
                {
                    "context": context,
                    "nodes": nodes,
                    "ms": ms,
                    "spread_ms": surface.spread_ms.get(context, {}).get(nodes),
                    "read_mb": foot and foot.call_bytes(int(context)) / 1e6,
                    "floor_ms": floor_ms,
                    "floor_share": floor_ms and floor_ms / ms,
                }
            )
    return {"weight_mb": foot and foot.weight_bytes / 1e6, "points": points}


def _step_row(name: str, row: Mapping) -> dict[str, str]:
    ms, share = row["ms"] or {}, row["share"] or {}
    phases = {
        phase: f"{number(ms[phase], 2)} ({percent(share[phase])})" if ms else "-"
        for phase in PHASES
    }
    wait = f"{number(row['wait_ms'], 2)} ({percent(row['wait_share'])})" if ms else "-"
    return {
        "decoder": name,
        "steps": str(row["steps"]),
        "step ms": number(row["step_ms"], 1),
        **phases,
        "wait": wait,
        "draft calls": number(row["draft_calls_per_step"], 2),
        "nodes": number(row["nodes_per_step"], 1),
        "nodes/draft call": number(row["nodes_per_draft_call"], 1),
        "tokens": number(row["tokens_per_step"], 2),
        "first step ms": number(row["first_step_ms"], 0),
    }


def _operator_row(row: Mapping) -> dict[str, str]:
    return {
        "name": row["name"].replace("|", "\\|"),
        "ms": number(row["ms"], 2),
        "share": percent(row["share"]),
        "calls": str(row["calls"]),
    }


def _with_spread(row: Mapping) -> str:
    spread = "" if row["spread_ms"] is None else f" ± {row['spread_ms']:.1f}"
    return number(row["ms"], 1) + spread


def number(value: float | None, digits: int) -> str:
    """Return a rounded number, "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """Return a share as a whole percentage."""
    return "-" if value is None else f"{100 * value:.0f} %"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
