"""What an audit found, as counts, words and tables: a pure function of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

from ouroboros.audit.audit import WHOLE
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.folder import AUDIT, ResultsFolder, read_lines

SHOWN = 40
OPEN = ("not judged", "not measured")
LEGEND = """\
identical: the very tokens of plain decoding. numeric tie: at the first token that differs, a shift
of the float64 logits no larger than the noise makes plain decoding choose the other token; the
noise is by how much the run's own arithmetic moves the logits of this text, measured by
transformers' own forward, without any drafter. BUG: any other difference, and every missing, failed
or truncated completion. not measured: all decoders refused the prompt alike, as one too long. The
row `greedy` holds plain decoding's text itself against float64.
Controls: plain decoding's text scored by transformers' own forward, so many tokens a call, no
drafter: where it differs, so may any decoder that scores several tokens at once."""


@dataclass(frozen=True)
class Row:
    """What the audit says of one prompt and repeat: a finding for each decoder, by name."""

    example: str
    repeat: int
    findings: Mapping[str, Mapping]
    controls: Sequence[Mapping] = field(default_factory=tuple)


def load_audit(folder: ResultsFolder) -> list[Row]:
    """Return the rows of audit.jsonl; none where there is no such file."""
    return [Row(**row) for _, row in read_lines(folder.path / AUDIT)]


def tally(rows: Sequence[Row], decoder: str) -> dict[str, int]:
    """Return how many completions of a decoder had each verdict."""
    return dict(Counter(r.findings[decoder]["verdict"] for r in rows if decoder in r.findings))


def verdict(counts: Mapping[str, int]) -> str:
    """Return one decoder's verdict in a few words.

    >>> verdict({"identical": 18, "numeric tie": 2})
    '2 ties of 20'
    """
    total = sum(counts.values())
    if counts.get("BUG"):
        return f"BUG in {counts['BUG']} of {total} (!)"
    if set(counts) == {"reference"}:
        return "reference"
    for word in OPEN:
        if counts.get(word):
            return f"{counts[word]} of {total} {word} (!)"
    if counts.get("numeric tie"):
        ties = counts["numeric tie"]
        return f"{ties} tie{'s' * (ties > 1)} of {total}"
    return next(iter(counts), "-")


def control_table(rows: Sequence[Row]) -> list[dict]:
    """Return, for each size of call, how often transformers' own forward differs from the text that
    plain decoding wrote: by prompt and by position, and the largest noise in logits."""
    sizes = sorted({control["rows"] for row in rows for control in row.controls})
    table = []
    for size in sizes:
        found = [c for row in rows for c in row.controls if c["rows"] == size]
        table.append(
            {
                "rows": "all" if size == WHOLE else size,
                "prompts": len(found),
                "prompts_differ": sum(c["differ"] > 0 for c in found),
                "positions": sum(c["positions"] for c in found),
                "positions_differ": sum(c["differ"] for c in found),
                "noise": max(c["noise"] for c in found),
            }
        )
    return table


def audit_markdown(title: str, rows: Sequence[Row], decoders: Sequence[str]) -> str:
    """Return audit.md: verdicts, controls, and each completion that is not identical."""
    counts = {name: tally(rows, name) for name in decoders}
    verdicts = [_verdict_row(name, found) for name, found in counts.items()]
    controls = [_control_row(found) for found in control_table(rows)]
    differ = [
        (row, name, finding)
        for row in rows
        for name, finding in row.findings.items()
        if finding["verdict"] not in ("identical", "in law", "reference")
    ]
    parts = [f"# Audit: {title}", _table(verdicts)]
    if controls:
        parts += ["## Controls, without any drafter", _table(controls)]
    if differ:
        parts += ["## Differences", _table([_difference(*found) for found in differ[:SHOWN]])]
    if len(differ) > SHOWN:
        parts.append(f"and {len(differ) - SHOWN} more, in audit.jsonl")
    return "\n\n".join([*parts, LEGEND]) + "\n"


def _verdict_row(name: str, counts: Mapping[str, int]) -> dict:
    total, same = sum(counts.values()), counts.get("identical", 0)
    judged = total - counts.get("in law", 0)
    return {
        "decoder": f"{name} (against float64)" if name == PLAIN else name,
        "verdict": verdict(counts),
        "compared": judged,
        "identical": same,
        "ties": counts.get("numeric tie", 0),
        "BUG": counts.get("BUG", 0),
        "share that differs": f"{100 * (1 - same / judged):.1f} %" if judged else "-",
    }


def _control_row(found: Mapping) -> dict:
    return {
        "tokens a call": found["rows"],
        "texts": found["prompts"],
        "texts with a difference": found["prompts_differ"],
        "share": f"{100 * found['prompts_differ'] / found['prompts']:.1f} %",
        "tokens": found["positions"],
        "tokens that differ": found["positions_differ"],
        "largest noise": f"{found['noise']:.2g}",
    }


def _difference(row: Row, name: str, finding: Mapping) -> dict:
    margin = finding.get("margin", {})
    return {
        "example": row.example + (f" #{row.repeat}" if row.repeat else ""),
        "decoder": name,
        "verdict": finding["verdict"],
        "at": finding.get("index", "-"),
        "expected, found": f"{finding.get('expected', '-')}, {finding.get('found', '-')}",
        "margin f32": _short(margin.get("float32")),
        "margin f64": _short(margin.get("float64")),
        "above the cut": ", ".join(_short(v) for v in finding.get("cut", {}).values()) or "-",
        "shift": _short(finding.get("shift")),
        "noise": _short(finding.get("noise")),
        "reason": finding.get("reason", "") if finding["verdict"] == "BUG" else "",
    }


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _table(rows: Sequence[Mapping]) -> str:
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
