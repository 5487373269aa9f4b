"""Profile a machine: time calls against the bandwidth floor, and split steps by phase.

Values that other engines do not report are NaN, never zero.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
from tqdm import tqdm

from ouroboros.bench.metrics.sample import Sample, step_frame
from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import COSTS, REMEDY, ResultsFolder
from ouroboros.bench.run.pair import Pair
from ouroboros.bench.run.run import Say, run
from ouroboros.core.instantiate import check_sizes, check_whole
from ouroboros.costs import Costs

LEGEND = """\
Calls: median milliseconds from the start of `score` until its argmax is on the host, on random
trees, ± half the interquartile range. Floor: the time to read the bytes that a call must read (all
weights except the embedding table, and the context's keys and values) at the measured copy
bandwidth, which counts bytes read plus bytes written. Reading alone may be faster, and a model that
fits in a processor's cache needs no memory bandwidth, so a share above 1 is possible. Steps: means
over all steps except each prompt's first, which includes the prefill. draft and verify: time in the
two models, until their results are on the host; host: the rest of the step. wait: the part of draft
and verify between the launch of a call and its result (on a CPU only token selection).
transformers' own generation (hf_) does not separate phases."""


@dataclass(frozen=True)
class ProfileOptions:
    """What a profile measures: the options `profile.*` of the command.

    Calls are timed on random trees of `nodes` nodes after `contexts` tokens, `calls` times per size
    in each of `visits` rounds. Raises `ValueError` for values that cannot be measured.
    """

    nodes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts: Sequence[int] = (128, 512, 1024)
    visits: int = 3
    calls: int = 2

    def __post_init__(self) -> None:
        for name in ("nodes", "contexts"):
            check_sizes(f"profile.{name}", getattr(self, name))
        if 1 not in self.nodes:
            raise ValueError(f"profile.nodes={self.nodes}: add 1, a call of standard decoding")
        for name in ("visits", "calls"):
            check_whole(f"profile.{name}", getattr(self, name))


def profile(
    config: RunConfig,
    options: ProfileOptions = ProfileOptions(),
    *,
    say: Say = lambda line: None,
    progress: bool = False,
) -> Profile:
    """Time both models' calls, run the decoders, and write the profile to the results folder.

    If the folder already has costs, calls are not timed again. `say` and `progress` as in `run`.
    Raises `ValueError` for options that cannot be measured or that differ from the folder's.
    """
    if not config.timing:
        raise ValueError("timing=false: a profile measures times; leave it out")
    if config.costs:
        raise ValueError("a profile measures the costs of calls: leave costs out")
    if config.batch_size > 1:
        raise ValueError(
            f"batch_size={config.batch_size}: a profile times the steps of one sequence: give "
            "batch_size=1"
        )
    measured = {"profile": json.loads(json.dumps(asdict(options)))}  # lists, as costs.json has
    resumed = config.results_dir and not config.overwrite
    old: Any = resumed and ResultsFolder(config.results_dir or "").load_costs()
    if old and (was := old.about.get("profile", {})) != measured["profile"]:
        values = " ".join(f"profile.{name}={value}" for name, value in was.items())
        what = f"costs measured with {values or 'another command'}: resume it as it was, {REMEDY}"
        raise ValueError(f"{config.results_dir} has {what}")

    def measure(pair: Pair) -> Costs:
        grid = {name: getattr(options, name) for name in ("nodes", "contexts", "visits")}
        visits = options.visits * len(set(options.contexts))
        with tqdm(total=visits, desc="calls", leave=False, disable=not progress) as bar:
            grid |= {"repeats": options.calls, "on_visit": bar.update}
            return replace(Costs.measure_grid(pair.models, **grid), about=measured)

    result = run(config, say=say, progress=progress, measure_costs=measure)
    folder, costs = result.folder, result.bench.costs
    assert costs is not None
    record, samples = folder.load_run(), folder.load_samples()
    good = [sample for sample in samples if not sample.error]
    timed = any(step.scored for sample in good for step in sample.steps[1:])
    if timed and record["status"] == "finished":  # a resumed run plans with the same costs
        seen = Costs.of_samples(good)
        costs = replace(costs, host_ms=seen.host_ms, prefill_ms=seen.prefill_ms)
        costs = replace(costs, prefill_tokens=seen.prefill_tokens)
    about = {key: record["provenance"][key] for key in ("machine", "versions")}
    costs = replace(costs, about={**measured, "model": record["model"], **about, "batch_size": 1})
    costs.save(folder.path / COSTS)
    failures = sorted({f"{one.decoder} failed: {one.error}" for one in samples if one.error})
    facts = Measured(folder.path, record, samples).facts
    bandwidth = costs.copy_bytes_per_s and costs.copy_bytes_per_s / 1e9
    made = Profile(folder, facts, bandwidth, call_frame(costs), step_means(samples), failures)
    made.save()
    return made


@dataclass(frozen=True)
class Profile:
    """The measurements of one run: `calls` (see `call_frame`), `steps` (see `step_means`), and
    `failures`, a line per kind of failure. `facts` as in `Measured`.

    `copy_gb_per_s` is the measured copy bandwidth, bytes read plus written (None: unknown).
    """

    folder: ResultsFolder
    facts: SimpleNamespace
    copy_gb_per_s: float | None
    calls: pd.DataFrame
    steps: pd.DataFrame
    failures: Sequence[str] = ()

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return {name: table of text}: "floor" (calls of one node, with the bandwidth floor) and
        "steps" (means by decoder)."""
        floor = self.calls[self.calls["nodes"] == 1].drop(columns="spread_ms")
        return {"floor": _text(floor), "steps": _text(self.steps.reset_index())}

    def to_dict(self) -> dict:
        """Return the command's JSON document: frames as lists of rows."""
        frames = {"calls": self.calls, "steps": self.steps.reset_index()}
        rows = {name: json.loads(frame.to_json(orient="records")) for name, frame in frames.items()}
        about = {"title": self.facts.title, "footnote": self.facts.footnote}
        return {**about, "copy_gb_per_s": self.copy_gb_per_s, **rows}

    def save(self) -> None:
        """Write profile.md."""
        bandwidth = "unknown" if self.copy_gb_per_s is None else f"{self.copy_gb_per_s:.1f} GB/s"
        parts = [
            f"# {self.facts.title}",
            f"{self.facts.footnote}.",
            "Milliseconds per call:",
            as_text(_text(self.calls)),
            f"Copy bandwidth: {bandwidth}, read plus written.",
            "Milliseconds per step:",
            as_text(self.tables()["steps"]),
            LEGEND,
        ]
        self.folder.write_text("profile.md", "\n\n".join(parts) + "\n")


def call_frame(costs: Costs) -> pd.DataFrame:
    """Return a row per measured model, context and nodes.

    Further columns: ms (median), spread_ms, read_mb (bytes of weights and KV cache that a call
    reads), floor_ms (the time to read them at the copy bandwidth) and floor_share (floor_ms / ms).
    """
    rows: list[tuple] = []
    for model, surface in (("target", costs.target), ("draft", costs.draft)):
        footprint = costs.footprints.get(model)
        for context, calls in surface.ms.items() if surface else ():
            spread_ms = surface.spread_ms.get(context, {}) if surface else {}
            read_mb = footprint and footprint.call_bytes(int(context)) / 1e6
            about = (read_mb, costs.floor_ms(model, int(context)))
            rows += [
                (model, int(context), int(n), ms, spread_ms.get(n), *about)
                for n, ms in calls.items()
            ]
    names = ["model", "context", "nodes", "ms", "spread_ms", "read_mb", "floor_ms"]
    frame = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(names[3:], float))
    return frame.assign(floor_share=frame["floor_ms"] / frame["ms"])


def step_means(samples: Sequence[Sample]) -> pd.DataFrame:
    """Return each decoder's means over steps (index: decoder), without each sample's first step.

    Columns: step_ms, tokens_per_step, draft_ms, verify_ms, host_ms, wait_ms (included in draft_ms
    and verify_ms), steps (their number), nodes_per_step. Phases and nodes of other engines are NaN;
    failed samples are left out.
    """
    names = pd.Index(dict.fromkeys(sample.decoder for sample in samples), name="decoder")
    steps = step_frame([sample for sample in samples if not sample.error]).drop(columns="sources")
    later = steps[steps["number"] > 0].groupby("decoder")
    means = later.mean().reindex(names)
    ours = means.where(later["scored"].min().reindex(names) > 0)
    return pd.DataFrame(
        {
            "step_ms": 1e3 * means["s"],
            "tokens_per_step": means["new"],
            **{f"{p}_ms": 1e3 * ours[f"{p}_s"] for p in ("draft", "verify", "host", "wait")},
            "steps": later.size().reindex(names, fill_value=0),
            "nodes_per_step": ours["scored"],
        }
    )


def _text(frame: pd.DataFrame) -> pd.DataFrame:
    """Format a frame: numbers with two decimals, "-" if missing."""
    shown = frame.astype(object).where(frame.notna(), "-")
    shown = shown.map(lambda value: f"{value:.2f}" if isinstance(value, float) else str(value))
    return shown.rename(columns=lambda n: n.replace("_per_", "/").replace("_", " "))
