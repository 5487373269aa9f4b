"""Make a report on any set of runs: sections of tables and plots, from which all files are
written. A report depends only on the results folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, select_autoescape
from markdown_it import MarkdownIt
from markupsafe import Markup

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.report import plots, style, tables, viewer
from ouroboros.bench.report.gather import Measured, load
from ouroboros.bench.report.plots import Setting
from ouroboros.bench.report.summary import Summary, summarise
from ouroboros.bench.report.tables import Table
from ouroboros.bench.run.folder import ResultsFolder

FEW_RUNS = 3
"""With more runs than this, the page shows the sections of single runs folded at first."""
MOST_SETTINGS = 4
"""In a sweep over more settings than this, runs are identified by their folders."""
MOST_TOKENS = 120_000
"""Most tokens in the page's viewer, over all runs; a token takes about 15 bytes."""
PLOTS = (
    ("speedup", partial(plots.bars, metrics=plots.SPEED), "Speedup over greedy."),
    ("cost", partial(plots.bars, metrics=plots.COST), "Cost per token."),
    ("positions", plots.acceptance_by_position,
     "Acceptance by position in the draft: share of steps that accepted the token there. Left: of "
     "all steps. Right: of the steps whose draft reached the position, with all tokens before it "
     "accepted; only such drafts count, so the curve may rise. Left out: positions that fewer "
     f"than {plots.FEWEST_STEPS} steps reached."),
    ("sources", plots.source_shares, "Sources of the tokens. Numbers: % of new tokens."),
)  # fmt: skip
"""A run's plots: (file name, function that draws a summary, caption)."""


class Picture(NamedTuple):
    """A plot, and the name of its files."""

    name: str
    caption: str
    figure: Any


class Section(NamedTuple):
    """A part of the report. The page unfolds it at first if `main`. `about` ends the captions of
    tables in a paper."""

    title: str
    about: str
    notes: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    main: bool = True


def make_report(folder: ResultsFolder) -> Summary:
    """Write a run's summary.json, summary.md and speedup.svg (for an untimed run also calls.svg)
    into its folder; return the summary. Raises `ValueError` if the folder contains no run, or a
    damaged one."""
    summary = summarise(load(folder.path))
    folder.write_json("summary.json", summary.to_dict())
    folder.write_text("summary.md", render("report.md", [run_section(summary)], [summary]))
    for name, metrics in (("speedup.svg", plots.SPEED), ("calls.svg", plots.COST)):
        (folder.path / name).unlink(missing_ok=True)
        if summary.facts.timed and metrics is plots.COST:
            continue
        if figure := plots.bars(summary, metrics):
            style.with_title(figure, summary.facts.title, plots.note(summary))
            style.save(figure, folder.path / name)
    return summary


def write_report(
    measured: Sequence[Measured], out: Path, *, tokenizer: str | None = None
) -> list[Summary]:
    """Write the report to the folder `out`; return the summaries of the runs that it shows.

        report.html   everything, in one self-contained file
        report.md     the same tables and plots as Markdown
        summary.json  every metric of every run, by its label
        numbers.csv   every number at full precision, one row per run and decoder
        tables/       each table as .csv and .tex (booktabs)
        plots/        each plot as .png and .svg

    `tokenizer` is the folder or hub id of the runs' tokenizer, if their models have moved.
    """
    runs = summarised(measured)
    parts = sections(runs)
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for table in part.tables:
            table.frame.to_csv(out / f"tables/{table.name}.csv", index=False)
            tables.write_latex(table, out / f"tables/{table.name}.tex", about=part.about)
        for one in part.pictures:
            style.save(one.figure, *(out / f"plots/{one.name}.{kind}" for kind in ("png", "svg")))
    share = MOST_TOKENS // max(1, len(runs))
    shown = [
        viewer.viewer_run(run.measured, run.label, most_tokens=share, tokenizer=tokenizer)
        for run in runs
    ]
    data = {"runs": shown, "sources": viewer.legend(), "step": viewer.STEP}
    whole = {run.label: run.to_dict() for run in runs}
    texts = {
        "summary.json": json.dumps(whole, indent=2, ensure_ascii=False) + "\n",
        "numbers.csv": numbers(runs).to_csv(index=False),
        "report.md": render("report.md", parts, runs),
        "report.html": render("report.html", parts, runs, data=data),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return runs


def render(name: str, parts: Sequence[Section], summaries: Sequence[Summary], **data) -> str:
    """Return the text of "report.md" or "report.html", rendered from the sections. report.html
    works offline: its plots are inline SVG; `data` is the content of its tree viewer."""
    environment = Environment(
        loader=PackageLoader("ouroboros.bench.report"),
        autoescape=select_autoescape(("html.jinja",)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    markdown = MarkdownIt("js-default")  # which escapes HTML
    environment.filters["prose"] = lambda text: Markup(markdown.renderInline(text))
    environment.filters["svg"] = lambda figure: Markup(style.inline_svg(figure))
    environment.filters["text"] = tables.as_text
    context = {"sections": parts, "glossary": tables.legend(summaries), "notes": tables.NOTES}
    return environment.get_template(f"{name}.jinja").render(**context, **data)


def summarised(measured: Sequence[Measured]) -> list[Summary]:
    """Return a summary of each measurement, with the run's `label` and the folder of its `sweep`
    (if it is one of several jobs in numbered folders).

    A label is the name of the run's folder; for a job, its settings (or folder, if they are many),
    after the sweep's name if there are other runs.
    """
    homes = [one.folder for one in measured]
    parents = [home.parent if home.name.isdigit() else None for home in homes]
    sweeps = [folder if folder and parents.count(folder) > 1 else None for folder in parents]
    names = short_names(sweep or home for home, sweep in zip(homes, sweeps, strict=True))
    labels = {home: names.get(home, "") for home in homes}
    for sweep in dict.fromkeys(filter(None, sweeps)):
        jobs = [home for home, own in zip(homes, sweeps, strict=True) if own == sweep]
        settings = swept([one.run for one in measured if one.folder in jobs])
        values = [
            ", ".join(f"{one.name}={one.values[n]}" for one in settings) for n in range(len(jobs))
        ]
        told = len({*values}) == len(jobs) and len(settings) <= MOST_SETTINGS
        prefix = f"{names[sweep]}: " if len(jobs) < len(homes) else ""
        labels |= {
            job: prefix + (own if told else job.name) for job, own in zip(jobs, values, strict=True)
        }
    return [
        replace(summarise(one), label=labels[one.folder], sweep=sweep)
        for one, sweep in zip(measured, sweeps, strict=True)
    ]


def short_names(folders: Iterable[Path]) -> dict[Path, str]:
    """Return a name for each folder: the last part of its path, or more parts if names would be
    equal.

    >>> list(short_names([Path("/old/gsm8k"), Path("/new/gsm8k")]).values())
    ['old/gsm8k', 'new/gsm8k']
    """
    parts, depth = {folder: folder.absolute().parts for folder in folders}, 1
    while len({own[-depth:] for own in parts.values()}) < len({*parts.values()}):
        depth += 1
    return {folder: "/".join(own[-depth:]) for folder, own in parts.items()}


def swept(runs: Sequence[Mapping]) -> list[Setting]:
    """Return the settings in which the configs of run.json files differ. Options that always change
    together form one setting, with the values of the first of them and the last part of its name,
    or the whole name, if another setting has the same last part.

    >>> both = [{"config": {"a": {"gamma": g}, "b": {"gamma": g}}} for g in (2, 4)]
    >>> [(one.name, one.values) for one in swept(both)]
    [('gamma', [2, 4])]
    """
    configs = [pd.json_normalize(run.get("config", {})).to_dict("records") for run in runs]
    flat: list[dict] = [records[0] if records else {} for records in configs]
    together: dict[tuple[int, ...], dict[str, list]] = {}
    for name in dict.fromkeys(name for one in flat for name in one):
        values = [one.get(name) for one in flat]
        if any(pattern := tuple(map(values.index, values))):
            together.setdefault(pattern, {})[name] = values
    firsts = [next(iter(options)) for options in together.values()]
    lasts = [name.rpartition(".")[2] for name in firsts]
    return [
        Setting(last if lasts.count(last) == 1 else first, options[first], list(options))
        for first, last, options in zip(firsts, lasts, together.values(), strict=True)
    ]


def numbers(runs: Sequence[Summary]) -> pd.DataFrame:
    """Return every number at full precision, a row per run and decoder."""
    counts = [name for name, metric in METRICS.items() if not metric.scalar and name != "verdict"]
    frames = {run.label: run.frame.drop(columns=counts) for run in runs}
    return pd.concat(frames, names=["run"]).reset_index()


def sections(runs: Sequence[Summary]) -> list[Section]:
    """Return the sections: a comparison of the runs outside sweeps, each sweep, each run."""
    alone = [run for run in runs if not run.sweep]
    parts = [_comparison(alone)] if len(alone) > 1 else []
    for folder, name in short_names(run.sweep for run in runs if run.sweep).items():
        parts.append(_comparison([run for run in runs if run.sweep == folder], name))
    for run in runs:
        name = run.label if len(runs) > 1 else ""
        part = run_section(run, label=name, drawn=() if run.sweep else PLOTS)
        parts.append(part._replace(main=len(runs) <= FEW_RUNS))
    return parts


def run_section(summary: Summary, *, label: str = "", drawn: Sequence[tuple] = ()) -> Section:
    """Return the section of one run, with its tables and the plots `drawn` (entries of `PLOTS`).
    The title and the file names start with `label`, the run's name, unless it is ""."""
    facts, prefix, before = summary.facts, "", ""
    if label:
        prefix, before = f"{slug(label)}-", f"{label}: "
    pictures = []
    for name, draw, text in drawn:
        if figure := draw(summary):
            text += plots.conditions([summary], intervals=name in ("speedup", "cost"))
            pictures.append(Picture(prefix + name, text, figure))
    shown = [table._replace(name=prefix + table.name) for table in tables.run_tables(summary)]
    notes = [f"{facts.footnote}.", *summary.notes]
    about = f"{before}{facts.what}; {facts.models}; {facts.sampling}."
    return Section(before + facts.title, about, notes, shown, pictures)


def slug(label: str) -> str:
    """Return a label as part of a file name: spaces, signs and the like become "-".

    >>> slug("sweep: gamma=4, bias=-3")
    'sweep-gamma-4-bias--3'
    """
    return re.sub(r"[^\w.-]+", "-", label).strip("-") or "run"


def _comparison(runs: Sequence[Summary], sweep: str = "") -> Section:
    """Return the section that compares `runs`: the jobs of the sweep named `sweep`, or separate
    runs if `sweep` is "". It has tables with a row per run, and plots over runs, batch sizes, or
    one or two settings."""
    settings = swept([run.measured.run for run in runs])
    settings.sort(key=lambda one: -len({*map(str, one.values)}))
    name, names = slug(sweep) if sweep else "comparison", [run.label for run in runs]
    by_settings = bool(sweep) and 0 < len(settings) <= MOST_SETTINGS
    shown = settings if by_settings else [Setting("run", names)]
    others = [one for one in settings if "batch_size" not in one.members]
    drawn = _batches(name, others, runs) if len(others) < len(settings) else []
    if len(shown) <= 2 and not (sweep and drawn):
        caption = f"Speedup and cost by {shown[0].name}."
        if len(shown) > 1:
            caption = f"Speedup (or cost) by {shown[0].name}, for each {shown[1].name}."
        if shown[0].members and all(one.startswith("decoder.") for one in shown[0].members):
            caption += f" Horizontal: the mean of a decoder without {shown[0].name}."
        if figure := plots.sweep_lines(shown, runs):
            drawn = [Picture(name, caption + plots.conditions(runs), figure), *drawn]
    about = f"Comparison of {len(runs)} runs: {', '.join(names)}"
    if by_settings:
        values = (f"{n} = {', '.join(dict.fromkeys(map(str, own)))}" for n, own, _ in shown)
        about = f"Sweep of {'; '.join(values)} ({sweep})"
    elif sweep:
        about = f"Sweep of {len(settings)} settings ({sweep})"
    parts = [run.facts.title.split(" · ") for run in runs]
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    own = (" · ".join(part for part in other if part not in shared) for other in parts)
    notes = [f"{run}: {rest}" for run, rest in zip(names, own, strict=True) if rest and not sweep]
    notes = [f"{len(runs)} runs: {' · '.join(shared)}", *notes]
    found = tables.comparisons({one.name: one.values for one in shown}, runs, f"{name}-")
    return Section(about, f"{about}.", notes, found, drawn)


def _batches(name: str, others: Sequence[Setting], runs: Sequence[Summary]) -> list[Picture]:
    """Return plots over batch sizes, one for each combination of the `others`, the other
    settings that vary. Their file names start with `name`."""
    keys = [", ".join(f"{one.name}={one.values[at]}" for one in others) for at in range(len(runs))]
    drawn = []
    for key in dict.fromkeys(keys):
        own = [run for run, its in zip(runs, keys, strict=True) if its == key]
        caption = (
            "Left: speedup over greedy at the same batch size. Right: tokens/s of all sequences "
            f"against tokens/s of each{f'; {key}' * bool(key)}. Numbers: batch sizes, beside the "
            f"highest throughput.{plots.conditions(own)}"
        )
        stem = slug(f"{name}-batches-{key}") if key else f"{name}-batches"
        if figure := plots.batch_lines(own):
            drawn.append(Picture(stem, caption, figure))
    return drawn
