"""One results folder's own report: summary.json, summary.md, and speedup.png (where nothing was
timed, calls.png).

A pure function of what lies in the folder: run again at any time, on any machine, it gives the same
summary. Reports over several folders are in `ouroboros.bench.report.combined`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.cells import as_text
from ouroboros.bench.report.gather import load, summary_of
from ouroboros.bench.report.plots.speedups import calls_bars, speedup_bars
from ouroboros.bench.report.plots.style import save_png
from ouroboros.bench.report.summary import cost_text, headline, summarise
from ouroboros.bench.report.tables import captioned, tables
from ouroboros.bench.run.folder import ResultsFolder

__all__ = ["headline", "legend", "make_report", "notes", "summarise", "tables", "to_markdown"]

LEGEND = """\
decode speedup: time per token after the first step against `greedy` on the same engine, latency
speedup: time per token of the whole run, prefill included (both pooled: sums divided once); macro
speedup: the geometric mean over prompts of each prompt's latency speedup; vs transformers: latency
speedup against `hf_greedy`; ouroboros over it: the decoder's time per token, prefill included, over
that of `ouroboros`, both on the same prompts: above 1 Ouroboros is ahead, and it is called so only
where the whole interval is; [95 % bootstrap over prompts, paired]. predicted: seconds that the
counts take at the costs named in the title, with prefill and the host's time where these hold them
("epyc" and "flat" hold no prefill); fit: the same at the costs measured in this very run, so that
agreeing with its seconds is no evidence. cost/token:
the calls of both models by these costs, in calls of the target on one node, greedy 1. calls/token
at {cost}: (target calls + {cost} x draft calls) / new tokens, whatever they score; the ratio is the
pair's own, by the bytes of its weights, where a run recorded it, else the published pair's 0.176,
and a call counts as its forwards where these were counted. TTFT: to the end of
the first step; TPOT: per token after it; E2E: mean per completion. repetition: share of a
completion's 4-grams that occurred before in it; below, within or above the 9 to 15 % of large
models' own answers: above, every decoder that drafts from the text is flattered. unequal:
completions whose tokens differ from `greedy`'s. lossless: the audit's verdict on them: identical,
ties (a move of the logits within the arithmetic's own noise makes the other token the choice; usual
below float32), BUG, or "in law" (rejection sampling); `greedy` is the reference, held against
float64 by ouroboros audit. Task scores: [95 %, Wilson for yes-or-no scores, else bootstrap].
accept len: tokens per step that had a draft, the bonus token included. nodes/token and nodes/call:
nodes that the target scored, the root among them, the prompt not. samples: measured; failures are
counted, never averaged. Warm-up is excluded; decoders alternate prompt by prompt."""
NO_GREEDY = """\
No greedy here: no speedup over it, no check that texts are equal, and nothing to audit against. \
Add greedy to decoder=[...] to have them."""


def legend(summaries: Iterable[Mapping]) -> str:
    """Return what the tables' columns mean."""
    return LEGEND.format(cost=cost_text(summaries))


def make_report(folder: ResultsFolder) -> dict:
    """Write summary.json, summary.md and the picture into the folder; return the summary.

    Raises `ValueError` where the folder holds no run.
    """
    summary = summary_of(load(folder.path))
    folder.write_json("summary.json", summary)
    folder.write_text("summary.md", to_markdown(summary))
    draw(speedup_bars(summary), folder.path / "speedup.png")
    draw(None if summary["timed"] else calls_bars(summary), folder.path / "calls.png")
    return summary


def draw(figure: Figure | None, path: Path) -> None:
    """Write a figure; no file where there is none (no greedy run to compare with)."""
    path.unlink(missing_ok=True)
    if figure is not None:
        save_png(figure, path)


def to_markdown(summary: Mapping) -> str:
    """Return summary.md: title, all tables, failures and the legend."""
    parts = [f"# {summary['title']}", summary["footnote"], *notes(summary)]
    for _, caption, frame in captioned(summary):
        parts += [f"**{caption}**", as_text(frame)]
    return "\n\n".join([*parts, legend([summary])]) + "\n"


def notes(summary: Mapping) -> list[str]:
    """Return one line for each thing that a reader must know: what is missing, what failed."""
    found = []
    if summary["samples"] < summary["samples_wanted"]:
        found.append(
            f"**Incomplete**: {summary['samples']} of {summary['samples_wanted']} samples."
        )
    elif summary["incomplete"]:
        found.append(f"**Incomplete**: the run's status is {summary['status']!r}.")
    if summary["resumed"]:
        lost = "" if summary["pools_restored"] else "; a carried pool starts empty after each"
        found.append(f"Taken up again {summary['resumed']} time(s) after a stop{lost}.")
    if not summary["timed"]:
        predicted = f"; speedups are predicted by {summary['costs']}" if summary["costs"] else ""
        found.append(f"Counts only: other jobs shared the device, so no time is shown{predicted}.")
    if PLAIN not in summary["decoders"]:
        found.append(NO_GREEDY)
    for name, row in summary["decoders"].items():
        found += [f"{name}: {row['failed']} failed: {error}" for error in row["errors"]]
    return found + unpriced(summary)


def unpriced(summary: Mapping) -> list[str]:
    """Return a line for each decoder whose cost the run's costs do not tell, which says why."""
    rows = summary["decoders"].items()
    why = {name: row["unpriced"] for name, row in rows if row.get("unpriced")}
    return [f"{name} has no cost/token and no prediction: {reason}" for name, reason in why.items()]
