"""From saved samples to summary.json, summary.md and the table on the screen.

A pure function of what lies in a results folder: run again at any time, on any machine, it gives
the same summary. The formulas are in `ouroboros.bench.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tabulate import tabulate

from ouroboros.bench import metrics
from ouroboros.bench.plots import plot_speedups
from ouroboros.bench.sample import Sample
from ouroboros.bench.store import ResultsFolder

BASELINE, PEER = "greedy", "hf_greedy"
LEGEND = """\
decode speedup: time per token after the first step against `greedy` on the same engine, latency
speedup: time per token of the whole run, prefill included, vs transformers: the same against
`hf_greedy`; [95 % bootstrap over prompts, paired]. repetition: share of a completion's 4-grams that
occurred before in it, (!) above 30 %: repeated text flatters every decoder that drafts from the
text. unequal: completions whose tokens differ from `greedy`'s, (!) if any: below float32 near-ties
may round differently. calls/token: (target calls + 0.176 x draft calls) / new tokens. accept len:
tokens per step that had a draft, the bonus token included. nodes/call: tokens scored per target
call. Warm-up is excluded; decoders alternate prompt by prompt."""


def make_report(folder: ResultsFolder) -> dict:
    """Write summary.json, summary.md and speedup.png into the folder; return the summary.

    Raises `ValueError` where the folder holds no run.
    """
    summary = summarise(folder.load_run(), folder.load_samples(), folder.load_scores())
    folder.write_json("summary.json", summary)
    folder.write_text("summary.md", to_markdown(summary))
    plot_speedups(summary, folder.path / "speedup.png")
    return summary


def summarise(
    run: Mapping, samples: Sequence[Sample], scores: Mapping[tuple[str, str, int], Mapping]
) -> dict:
    """Return every metric of every decoder, in the order of the run's config; plain JSON values."""
    good: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    failed: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    for sample in samples:
        (failed if sample.error else good)[sample.decoder].append(sample)
    rows = {}
    for name, mine in good.items():
        rows[name] = {
            "samples": len(mine),
            "failed": len(failed[name]),
            "errors": sorted({s.error for s in failed[name] if s.error}),
            **_decoder_metrics(mine, good),
            "scores": metrics.task_scores(mine, scores),
        }
    return {
        "title": title(run),
        "footnote": footnote(run),
        "status": run["status"],
        "resumed": run["resumed"],
        "samples": len(samples),
        "samples_wanted": run["samples_wanted"],
        "decoders": rows,
    }


def title(run: Mapping) -> str:
    """Return one line: task, model (and that it is a stand-in), dtype, batch size 1, machine."""
    model, sampling = run["model"], run["sampling"]
    standin = model.get("standin")
    shape = f" as a stand-in, shapes {standin['target']} / {standin['draft']}" if standin else ""
    heat = f"T={sampling['temperature']:g}" if sampling["temperature"] else "greedy (T=0)"
    prompts = f"{run['task']['prompts']} prompts x {run['max_new']} tokens"
    return (
        f"{run['task']['name']}, {prompts} · {model['name']} pair{shape} · {model['dtype']} · "
        f"{heat} · batch size 1 · {device(run)}"
    )


def device(run: Mapping) -> str:
    """Return the name of the GPU or CPU that ran the models."""
    machine = run["provenance"]["machine"]
    if run["model"]["device"].startswith("cuda") and machine["gpus"]:
        return machine["gpus"][0]
    return f"{machine['cpu']}, {machine['cores']} cores"


def footnote(run: Mapping) -> str:
    """Return one line: host and versions."""
    machine, versions = run["provenance"]["machine"], run["provenance"]["versions"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
        f"torch {versions['torch']}, transformers {versions['transformers']}"
    )


def to_markdown(summary: Mapping) -> str:
    """Return summary.md: title, both tables, failures and the legend."""
    notes = [summary["footnote"]]
    if summary["samples"] < summary["samples_wanted"]:
        notes.append(
            f"**Incomplete**: {summary['samples']} of {summary['samples_wanted']} samples."
        )
    if summary["resumed"]:
        notes.append(
            f"Taken up again {summary['resumed']} time(s) after a stop; "
            "a carried phrase pool starts empty after each."
        )
    for name, row in summary["decoders"].items():
        notes += [f"{name}: {row['failed']} failed: {error}" for error in row["errors"]]
    parts = [f"# {summary['title']}", *notes, *tables(summary), LEGEND]
    return "\n\n".join(parts) + "\n"


def tables(summary: Mapping, style: str = "github") -> tuple[str, str]:
    """Return the table of speed and the table of acceptance, as text."""
    rows = summary["decoders"]
    scored = sorted({name for row in rows.values() for name in row["scores"]})
    speed = [_speed_row(name, row, scored) for name, row in rows.items()]
    counts = [_count_row(name, row) for name, row in rows.items()]
    return _table(speed, style), _table(counts, style)


def headline(summary: Mapping) -> dict:
    """Return the few numbers per decoder that the last line of stdout carries."""
    keys = ("output_throughput", "acceptance_length", "calls_per_token", "repetition_rate")
    return {
        name: {
            **{key: _rounded(row[key]) for key in keys},
            "decode_speedup": _rounded(_value(row["decode_speedup"])),
            "latency_speedup": _rounded(_value(row["latency_speedup"])),
            "latency_speedup_vs_hf": _rounded(_value(row["latency_speedup_vs_hf"])),
            "unequal": row["unequal"],
            "failed": row["failed"],
        }
        for name, row in summary["decoders"].items()
    }


def _decoder_metrics(mine: Sequence[Sample], good: Mapping[str, Sequence[Sample]]) -> dict:
    steps = metrics.steps_of(mine)
    shares = metrics.phase_shares(steps)
    return {
        "new_tokens": sum(len(s.new_tokens) for s in mine),
        "output_throughput": metrics.output_throughput(mine),
        "macro_throughput": metrics.macro_throughput(mine),
        "ttft_ms": metrics.ttft_ms(mine),
        "tpot_ms": metrics.tpot_ms(mine),
        **_speedups("", good.get(BASELINE, []), mine),
        **_speedups("_vs_hf", good.get(PEER, []), mine),
        "draft_share": shares["draft"],
        "verify_share": shares["verify"],
        "host_share": shares["host"],
        "host_ms_per_step": metrics.host_ms_per_step(steps),
        "acceptance_length": metrics.acceptance_length(steps),
        "tokens_per_target_call": metrics.tokens_per_target_call(steps),
        "draft_calls_per_token": metrics.draft_calls_per_token(steps),
        "calls_per_token": metrics.calls_per_token(steps),
        "draft_acceptance_rate": metrics.draft_acceptance_rate(steps),
        "scored_per_step": metrics.scored_per_step(steps),
        "acceptance_rate_per_position": metrics.acceptance_rate_per_position(steps),
        "acceptance_histogram": metrics.acceptance_histogram(steps),
        "tokens_by_source": metrics.tokens_by_source(steps),
        "repetition_rate": metrics.mean_repetition_rate(mine),
        "unequal": metrics.unequal(good.get(BASELINE, []), mine),
        "peak_bytes": max((s.peak_bytes for s in mine if s.peak_bytes), default=None),
    }


def _speedups(suffix: str, baseline: Sequence[Sample], mine: Sequence[Sample]) -> dict:
    whole = metrics.speedup(baseline, mine)
    after = metrics.speedup(baseline, mine, part=metrics.decode_part)
    return {
        f"decode_speedup{suffix}": after and asdict(after),
        f"latency_speedup{suffix}": whole and asdict(whole),
    }


def _speed_row(name: str, row: Mapping, scored: Sequence[str]) -> dict[str, str]:
    shares = [row[f"{phase}_share"] for phase in ("draft", "verify", "host")]
    cells = {
        "decoder": name,
        "tokens/s": _number(row["output_throughput"], 1),
        "decode speedup": _interval(row["decode_speedup"]),
        "latency speedup": _interval(row["latency_speedup"]),
        "vs transformers": _interval(row["latency_speedup_vs_hf"]),
        "TTFT ms": _number(row["ttft_ms"], 1),
        "TPOT ms": _number(row["tpot_ms"], 2),
        "draft/verify/host %": _shares(shares),
        "repetition": _repetition(row["repetition_rate"]),
        "unequal": _unequal(row),
    }
    cells |= {score: _number(row["scores"].get(score), 3) for score in scored}
    return cells


def _count_row(name: str, row: Mapping) -> dict[str, str]:
    total = sum(row["tokens_by_source"].values())
    shares = {name: 100 * n / total for name, n in row["tokens_by_source"].items()}
    return {
        "decoder": name,
        "accept len": _number(row["acceptance_length"], 2),
        "tokens/target call": _number(row["tokens_per_target_call"], 2),
        "draft calls/token": _number(row["draft_calls_per_token"], 2),
        "calls/token": _number(row["calls_per_token"], 3),
        "draft accepted": _percent(row["draft_acceptance_rate"]),
        "nodes/call": _number(row["scored_per_step"], 1),
        "host ms/step": _number(row["host_ms_per_step"], 2),
        "tokens by source %": ", ".join(f"{name} {share:.0f}" for name, share in shares.items()),
    }


def _table(rows: Sequence[Mapping[str, str]], style: str) -> str:
    align = ["left", *["right"] * (len(rows[0]) - 1)] if rows else None
    return tabulate(rows, headers="keys", tablefmt=style, disable_numparse=True, colalign=align)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _shares(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return "/".join(f"{100 * share:.0f}" for share in known) if known else "-"


def _repetition(rate: float | None) -> str:
    return _percent(rate) + (" (!)" if rate is not None and rate > metrics.REPETITIVE else "")


def _unequal(row: Mapping) -> str:
    if row["unequal"] is None:
        return "-"
    return f"{row['unequal']} of {row['samples']} (!)" if row["unequal"] else "0"


def _interval(found: Mapping | None) -> str:
    if found is None:
        return "-"
    low, high = found["low"], found["high"]
    return f"{found['value']:.2f}x" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def _value(found: Mapping | None) -> float | None:
    return None if found is None else found["value"]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
