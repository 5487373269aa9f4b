"""Count the verdicts of an audit and format them. The only input is the list of its `Row`s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from ouroboros.audit.audit import WHOLE

OPEN = ("not judged", "not measured")
"""The verdicts of completions that were not compared."""
FLOAT64 = "the model in float64"
"""What standard decoding's completions are compared with."""
LEGEND = """\
identical: the tokens of standard decoding. numeric tie: at the first token that differs, a shift of
the float64 logits within the noise makes standard decoding choose the other token; the noise is the
rounding error of this text's logits in the run's dtype, measured by transformers' own forward pass,
without any drafter. BUG: any other difference, and every missing, failed or truncated completion.
in law: the decoder preserves the distribution, not individual tokens. not judged: there is too
little memory, or no completion of standard decoding. not measured: every decoder refused the
prompt, for example because it is too long. The row `greedy` compares standard decoding's completion
with the model in float64: a tie there is a rounding error of the run's dtype, with exact calls too,
and no difference between decoders. greedy-equivalent (at temperature 0): every completion is
identical to greedy decoding's or first differs at a numeric tie.
Controls: standard decoding's completion scored by transformers' own forward pass, with this many
tokens per call and without a drafter. If it differs, any decoder that scores several tokens at once
may differ too."""


@dataclass(frozen=True)
class Row:
    """The audit of one prompt in one repeat: `findings` is {decoder: `Finding.to_dict()`},
    `controls` has the fields of each `Control`."""

    example: str
    repeat: int
    findings: Mapping[str, Mapping]
    controls: Sequence[Mapping] = field(default_factory=tuple)


def tally(rows: Sequence[Row], decoder: str) -> dict[str, int]:
    """Return how many completions of a decoder have each verdict, {verdict: count}."""
    return dict(Counter(r.findings[decoder]["verdict"] for r in rows if decoder in r.findings))


def verdict(counts: Mapping[str, int]) -> str:
    """Return a decoder's verdict in a few words, from its `tally`.

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
    if ties := counts.get("numeric tie"):
        return f"{ties} tie{'s' * (ties > 1)} of {total}"
    return next(iter(counts), "-")


def greedy_equivalent(counts: Mapping[str, int]) -> str:
    """Return whether a decoder's completions equal greedy decoding's, given its `tally`: "yes" if
    all are identical or ties, "no" if one is a BUG, else "-".

    >>> greedy_equivalent({"identical": 18, "numeric tie": 2}), greedy_equivalent({"BUG": 1})
    ('yes', 'no')
    """
    if counts.get("BUG"):
        return "no"
    return "yes" if counts and not {*OPEN, "in law"} & counts.keys() else "-"


def control_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a table with a row per call size, "tokens a call": the completions ("texts") and
    "tokens" for which transformers' own forward pass was run, how many of each it chooses
    differently from standard decoding ("... that differ"), and the "largest noise" in logits. Empty
    without controls."""
    controls = pd.DataFrame([control for row in rows for control in row.controls])
    if controls.empty:
        return controls
    table = controls.groupby("rows").agg(
        **{
            "texts": ("differ", "size"),
            "texts that differ": ("differ", lambda differ: (differ > 0).sum()),
            "tokens": ("positions", "sum"),
            "tokens that differ": ("differ", "sum"),
            "largest noise": ("noise", "max"),
        }
    )
    table.index = ["all" if size == WHOLE else str(size) for size in table.index]
    return table.rename_axis("tokens a call").reset_index()


def verdict_table(
    rows: Sequence[Row], decoders: Sequence[str], *, reference: str = "greedy", greedy: bool = False
) -> pd.DataFrame:
    """Return a table of verdicts and their counts, a row per decoder. `reference` names standard
    decoding; `greedy`: whether the run was at temperature 0."""
    verdicts = []
    for name in decoders:
        counts = tally(rows, name)
        same, ties, bugs = (counts.get(word, 0) for word in ("identical", "numeric tie", "BUG"))
        differ = ties + bugs
        share = f"{100 * differ / (same + differ):.1f} %" if same + differ else "-"
        verdicts.append(
            {
                "decoder": name,
                "compared with": FLOAT64 if name == reference else reference,
                "verdict": verdict(counts),
                "completions": sum(counts.values()) - counts.get("in law", 0),
                "identical": same,
                "ties": ties,
                "BUG": bugs,
                "share that differs": share,
                **({"greedy-equivalent": greedy_equivalent(counts)} if greedy else {}),
            }
        )
    return pd.DataFrame(verdicts)


def audit_markdown(title: str, rows: Sequence[Row], verdicts: pd.DataFrame) -> str:
    """Return the text of audit.md: the `verdict_table`, controls, and each completion that is not
    identical."""
    differences = [
        {
            "prompt": row.example + (f" #{row.repeat}" if row.repeat else ""),
            "decoder": name,
            "verdict": finding["verdict"],
            "at": finding.get("index", "-"),
            "expected, found": f"{finding.get('expected', '-')}, {finding.get('found', '-')}",
            "margin": _short(finding.get("margin")),
            "shift": _short(finding.get("shift")),
            "noise": _short(finding.get("noise")),
            "reason": finding.get("reason", "") if finding["verdict"] == "BUG" else "",
        }
        for row in rows
        for name, finding in row.findings.items()
        if finding["verdict"] not in ("identical", "in law", "reference")
    ]
    parts = [f"# Audit: {title}", _markdown(verdicts)]
    controls = control_table(rows)
    if len(controls):
        controls["largest noise"] = controls["largest noise"].map(_short)
        parts += ["## Controls, without any drafter", _markdown(controls)]
    if differences:
        parts += ["## Differences", _markdown(pd.DataFrame(differences))]
    return "\n\n".join([*parts, LEGEND]) + "\n"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown, in which `|` would start another cell."""
    cells = table.map(lambda value: str(value).replace("|", "\\|"))
    return cells.to_markdown(index=False, tablefmt="github", disable_numparse=True)
