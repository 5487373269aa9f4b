"""Where the time goes on a machine: model calls against their floor, and steps by phase.

What another engine does not report is missing (NaN), never zero.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from tqdm import tqdm

from ouroboros.bench.metrics.operators import operators
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.plots import costs as plots
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.run.config import RunConfig, check_whole
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.pair import Pair
from ouroboros.bench.run.prompts import prompt_ids
from ouroboros.bench.run.run import Say, run
from ouroboros.costs import Costs
from ouroboros.decode import Drafter

LEGEND = """\
Calls: median milliseconds from the start of `score` to the arrival of its argmax, on random trees,
± half the interquartile range. Floor: the bytes that a call must read (all weights but the
embedding table, and the context's keys and values) at the measured copy bandwidth, which counts
bytes read plus bytes written. Reading alone may be faster, and a model that fits in a cache is not
bound by memory, so more than 100 % is possible. Steps: means over all steps but each prompt's
first, which holds the prefill. draft and verify: time in the two models, each up to the arrival of
its result; host: the rest of the step. wait: the part of draft and verify between the launch of a
call and its result (on a CPU only the choice of tokens). transformers' own generation (hf_) does
not separate its phases."""
NO_OPERATORS = pd.DataFrame(columns=["decoder", "kind", "name", "ms", "calls", "share", "steps"])
PHASES = ("draft", "verify", "host", "wait")
PASSES = {
    "device": "operators by their own time on the device",
    "host": "operators by their own time on the CPU",
    "python": "Python functions by their own time, model calls left out",
}


@dataclass(frozen=True)
class ProfileOptions:
    """What a profile measures, as the options profile.* of the command.

    Calls are timed on random trees of `nodes` after `contexts` tokens: `calls` of each size on each
    of `visits` visits; `padded` if the engine pads trees to exactly these sizes. `trace` adds the
    operators of `trace_steps` steps. Raises `ValueError` for values that cannot be measured.
    """

    nodes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts: Sequence[int] = (128, 512, 1024)
    visits: int = 3
    calls: int = 2
    padded: bool = False
    trace: bool = False
    trace_steps: int = 8

    def __post_init__(self) -> None:
        for name in ("nodes", "contexts"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"profile.{name}={values}: give a list, as [1,8,64]")
            for value in values:
                check_whole(f"profile.{name}", value)
        for name in ("visits", "calls", "trace_steps"):
            check_whole(f"profile.{name}", getattr(self, name))
        for name in ("trace", "padded"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"profile.{name}={getattr(self, name)}: give true or false")


def profile(
    config: RunConfig,
    options: ProfileOptions = ProfileOptions(),
    *,
    say: Say = lambda line: None,
    progress: bool = False,
) -> Profile:
    """Time both models' calls, run the decoders, write the profile into the run's folder.

    The folder is an ordinary results folder; in one that exists, costs are not measured again.
    `say` and `progress` as in `run`. Raises `ValueError` for what cannot be measured.
    """
    if not config.timing:
        raise ValueError("timing=false: a profile measures times; leave it out")

    def measure(pair: Pair) -> Costs:
        visits = options.visits * len(set(options.contexts))
        with tqdm(total=visits, desc="calls", leave=False, disable=not progress) as bar:
            return Costs.measure_grid(
                pair.models,
                nodes=options.nodes,
                contexts=options.contexts,
                visits=options.visits,
                repeats=options.calls,
                padded=options.padded,
                on_visit=lambda costs: bar.update(),
            )

    result = run(config, say=say, progress=progress, measure_costs=measure)
    folder, bench, costs = result.folder, result.bench, result.bench.costs
    assert costs is not None
    record, samples = folder.load_run(), folder.load_samples()
    good = [sample for sample in samples if not sample.error]
    if any(step.scored for sample in good for step in sample.steps[1:]):
        seen = Costs.of_samples(good)
        costs = replace(costs, host_ms=seen.host_ms, prefill_ms=seen.prefill_ms)
    about = {key: record["provenance"][key] for key in ("machine", "versions")}
    costs = replace(costs, about={"model": record["model"], **about, "batch_size": 1})
    folder.save_costs(costs)
    traced = []
    if result.finished and options.trace:
        prompt, steps = prompt_ids(bench.target.tokenizer, bench.examples[0]), options.trace_steps
        traced = [
            operators(bench.models, make, prompt, steps=steps).assign(decoder=name)
            for name, make in bench.decoders.items()
            if isinstance(make(), Drafter)
        ]
    found = Profile(
        folder,
        RunFacts.of(record, samples),
        costs.copy_bytes_per_s and costs.copy_bytes_per_s / 1e9,
        call_frame(costs),
        step_frame(samples),
        pd.concat([NO_OPERATORS, *traced], ignore_index=True),
        sorted({f"{one.decoder} failed: {one.error}" for one in samples if one.error}),
    )
    found.save()
    return found


@dataclass(frozen=True)
class Profile:
    """What `call_frame`, `step_frame` and `operators` measured in one run; a line per failure."""

    folder: ResultsFolder
    facts: RunFacts
    copy_gb_per_s: float | None
    calls: pd.DataFrame
    steps: pd.DataFrame
    operators: pd.DataFrame
    failures: Sequence[str] = ()

    @property
    def smallest_calls(self) -> pd.DataFrame:
        """The rows of `calls` with the fewest nodes of each model, which the floor bounds."""
        return self.calls[
            self.calls["nodes"] == self.calls.groupby("model")["nodes"].transform("min")
        ]

    def floor_table(self) -> pd.DataFrame:
        """Return the smallest call of each model and context beside its floor, as text."""
        return _text(self.smallest_calls.drop(columns="spread_ms"))

    def step_table(self) -> pd.DataFrame:
        """Return the means of each decoder's steps, as text."""
        return _text(self.steps.reset_index())

    def call_table(self, model: str) -> pd.DataFrame:
        """Return a model's milliseconds per call as text, nodes down, contexts across."""
        own = self.calls[self.calls["model"] == model]
        spread = own["spread_ms"].map(lambda ms: "" if pd.isna(ms) else f" ± {ms:.1f}")
        cells = own.assign(cell=own["ms"].map("{:.1f}".format) + spread)
        table = cells.pivot(index="nodes", columns="context", values="cell").fillna("-")
        return table.rename(columns="{:g} tokens".format).reset_index().astype(str)

    def markdown(self) -> str:
        """Return profile.md."""
        bandwidth = "unknown" if self.copy_gb_per_s is None else f"{self.copy_gb_per_s:.1f} GB/s"
        parts = [f"# {self.facts.title}", self.facts.footnote]
        parts += [f"Copy bandwidth: {bandwidth}, read plus written.", as_text(self.floor_table())]
        for model in self.calls["model"].unique():
            parts += [f"Milliseconds per call of the {model}:", as_text(self.call_table(model))]
        parts += ["Milliseconds per step:", as_text(self.step_table()), LEGEND]
        for name, rows in self.operators.groupby(["decoder", "kind", "steps"], sort=False):
            decoder, kind, steps = name
            parts.append(f"## {decoder}, {steps} steps under a slowing profiler: {PASSES[kind]}")
            table = _text(rows[["name", "ms", "share", "calls"]])
            parts.append(as_text(table.replace({"name": {r"\|": r"\\|"}}, regex=True)))
        return "\n\n".join(parts) + "\n"

    def to_dict(self, *, brief: bool = False) -> dict:
        """Return profile.json: everything as plain JSON values, frames as lists of rows; `brief`
        leaves out operators and all but the smallest calls."""
        frames = {
            "calls": self.calls,
            "steps": self.steps.reset_index(),
            "operators": self.operators,
        }
        if brief:
            frames = {"calls": self.smallest_calls, "steps": frames["steps"]}
        rows = {name: json.loads(frame.to_json(orient="records")) for name, frame in frames.items()}
        about = {"title": self.facts.title, "footnote": self.facts.footnote}
        return {**about, "copy_gb_per_s": self.copy_gb_per_s, **rows}

    def save(self) -> None:
        """Write profile.json, profile.md, verify_cost.png and step_time.png."""
        self.folder.write_json("profile.json", self.to_dict())
        self.folder.write_text("profile.md", self.markdown())
        note = f"{self.facts.footnote}. Medians; error bars: half the interquartile range."
        parts = " · ".join(self.facts.title_parts[1:])
        figure = style.with_title(plots.verify_cost(self.calls), f"Cost of a call · {parts}", note)
        style.save(figure, self.folder.path / "verify_cost.png")
        if figure := plots.step_time(self.steps):
            note = f"{self.facts.footnote}. Numbers in the bars: % of the step."
            style.with_title(figure, f"Where a step's time goes · {self.facts.title}", note)
            style.save(figure, self.folder.path / "step_time.png")


def call_frame(costs: Costs) -> pd.DataFrame:
    """Return a row per model, context and nodes: ms, spread_ms, read_mb, floor_ms, floor_share."""
    rows = []
    for model, surface in (("target", costs.target), ("draft", costs.draft)):
        bytes_read = costs.footprints.get(model)
        for context, calls in surface.ms.items() if surface else ():
            floor_ms = costs.floor_ms(model, int(context))
            for nodes, ms in calls.items():
                rows.append(
                    {
                        "model": model,
                        "context": int(context),
                        "nodes": int(nodes),
                        "ms": ms,
                        "spread_ms": surface.spread_ms.get(context, {}).get(nodes),
                        "read_mb": bytes_read and bytes_read.call_bytes(int(context)) / 1e6,
                        "floor_ms": floor_ms,
                        "floor_share": floor_ms and floor_ms / ms,
                    }
                )
    return pd.DataFrame(rows).astype({"spread_ms": float, "read_mb": float, "floor_ms": float})


def step_frame(samples: Sequence[Sample]) -> pd.DataFrame:
    """Return means over the steps of each decoder (the index) but each sample's first.

    Phases are in milliseconds; wait_ms is a part of draft_ms and verify_ms. Phases and nodes of
    another engine are NaN; failed samples are left out.
    """
    columns = ["decoder", "first", "draft_s", "verify_s", "host_s", "wait_s"]
    columns += ["draft_calls", "scored", "draft_scored", "new"]
    rows = [
        (sample.decoder, index == 0, *(getattr(step, name) for name in columns[2:]))
        for sample in samples
        for index, step in enumerate(() if sample.error else sample.steps)
    ]
    steps = pd.DataFrame(rows, columns=columns)
    steps["step_s"] = steps[["draft_s", "verify_s", "host_s"]].sum(axis=1)
    names = pd.Index(dict.fromkeys(sample.decoder for sample in samples), name="decoder")
    first = steps["first"].astype(bool)
    later = steps[~first].groupby("decoder")
    means = later.mean().reindex(names)
    ours = means.where(later["scored"].min().reindex(names) > 0)
    return pd.DataFrame(
        {
            "step_ms": 1e3 * means["step_s"],
            "tokens_per_step": means["new"],
            **{f"{phase}_ms": 1e3 * ours[f"{phase}_s"] for phase in PHASES},
            "steps": later.size().reindex(names, fill_value=0),
            "draft_calls_per_step": means["draft_calls"],
            "nodes_per_step": ours["scored"],
            "nodes_per_draft_call": ours["draft_scored"] / ours["draft_calls"].replace(0, np.nan),
            "first_step_ms": 1e3 * steps[first].groupby("decoder")["step_s"].mean().reindex(names),
        }
    )


def _text(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text: shares as percentages, numbers with up to two decimals, "-" if missing."""

    def cell(name: str, value) -> str:
        if pd.isna(value):
            return "-"
        if isinstance(value, float) and name.endswith("share"):
            return f"{value:.0%}"
        return f"{value:.{2 if value < 100 else 0}f}" if isinstance(value, float) else str(value)

    cells = {name: [cell(str(name), value) for value in column] for name, column in frame.items()}
    return pd.DataFrame(cells).rename(columns=lambda n: n.replace("_per_", "/").replace("_", " "))
