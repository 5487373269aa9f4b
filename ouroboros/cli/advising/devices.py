"""From how many devices a wider tree pays: `ouroboros advise scaling=<folder of widths>`.

The widths come from the counts and trees of a sweep (experiment=scaling_law), or from the
scaling.json of an earlier answer; nothing is run. What is said of devices is a prediction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from tabulate import tabulate

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.bench.report.plots import style
from ouroboros.bench.run.config import check_whole
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.costs import Costs
from ouroboros.tuning.plots import scaling_law
from ouroboros.tuning.scaling import Law, Pays, Width, law_of, pays, width_of

FILE = "scaling.json"
WORTH = 1.02  # what is less than this over one device is no gain


def devices(config: dict, costs: Costs | None) -> dict:
    """Print, write and return the law of each decoder and its best width on so many devices.

    Raises `ValueError` without costs, and for folders without trees.
    """
    counts, message_ms = config["devices"], config["message_ms"]
    for count in counts:
        check_whole("devices", count)
    if costs is None:
        raise ValueError("scaling= needs costs: give costs=epyc, flat or a file, or machine.*")
    place = Path(config["scaling"])
    if place.is_file():
        widths, measured = from_file(place, counts)
    else:
        widths, measured = from_runs(place, counts)
    names = dict.fromkeys(width.decoder for width in widths)
    laws = {name: law_of([w for w in widths if w.decoder == name]) for name in names}
    best = pays(widths, costs, devices=counts, message_ms=message_ms)
    text = told(widths, laws, best, costs, message_ms)
    print(text)
    document = {
        "measured": measured,
        "widths": [asdict(width) for width in widths],
        "laws": {name: law and asdict(law) for name, law in laws.items()},
        "message_ms": message_ms,
        "predicted": [asdict(one) for one in best],
    }
    if config["results_dir"]:
        folder = ResultsFolder(config["results_dir"])
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_json(FILE, document)
        folder.write_text("scaling.md", f"{measured}\n\n```\n{text}\n```\n")
        figure = scaling_law(widths, laws)
        style.with_title(figure, "Tokens per step over nodes per step", measured)
        style.save(figure, folder.path / "scaling.png")
    return document


def from_runs(place: Path, counts: Sequence[int]) -> tuple[list[Width], str]:
    """Return the widths of a folder's runs, greedy left out, and what was measured."""
    found, titles = [], []
    for path in run_folders(place):
        run = load(path)
        titles.append(RunFacts.of(run.run, run.samples).title)
        for name in run.run["decoders"]:
            samples = [s for s in run.samples if s.decoder == name and not s.error]
            trees = [tree for s in samples for tree in run.trees.get(s.key, ())]
            if name != PLAIN and not trees:
                raise ValueError(f"{path} has no trees of {name}: run it with record_trees=true")
            if name != PLAIN:
                found.append(width_of(name, samples, trees, counts))
    return found, f"{len(titles)} runs, the first: {titles[0]}."


def from_file(place: Path, counts: Sequence[int]) -> tuple[list[Width], str]:
    """Return the widths that were written before. Raises `ValueError` for devices they lack."""
    try:
        known = json.loads(place.read_text(encoding="utf-8"))
        rows = [
            {**row, "parts": {int(n): p for n, p in row["parts"].items()}}
            for row in known["widths"]
        ]
        widths = [Width(**row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{place} holds no widths: give a folder of runs") from error
    lacking = sorted(set(counts) - set(chain.from_iterable(w.parts for w in widths)))
    if lacking:
        raise ValueError(f"{place} says nothing of {lacking} devices: give the folder of its runs")
    return widths, known["measured"]


def told(
    widths: Sequence[Width],
    laws: Mapping[str, Law | None],
    best: Sequence[Pays],
    costs: Costs,
    message_ms: float,
) -> str:
    """Return the tables and a sentence for each decoder."""
    rows = [
        {
            "decoder": one.decoder,
            "nodes/step": one.nodes,
            "tokens/step": one.tokens,
            **{f"part of {n}": part for n, part in one.parts.items() if n > 1},
        }
        for one in sorted(widths, key=lambda one: (one.decoder, one.nodes))
    ]
    lines = [tabulate(rows, headers="keys", floatfmt=".2f"), ""]
    for name, law in laws.items():
        if law is not None:
            lines.append(
                f"{name}: tokens/step = {law.at_one:.2f} + {law.per_doubling:.2f} log2(nodes), "
                f"R² {law.r2:.2f}"
            )
    by = costs.about.get("name") or costs.about.get("computed") or "measured costs"
    lines += ["", f"predicted by {by}, with {message_ms} ms for a message:"]
    columns = [
        {
            "decoder": one.decoder,
            "devices": one.devices,
            "best width (nodes)": one.nodes,
            "largest part": one.part,
            "tokens/step": one.tokens,
            "over one device": one.speed,
            "over greedy": one.speedup,
        }
        for one in best
    ]
    lines += [tabulate(columns, headers="keys", floatfmt=".2f"), ""]
    return "\n".join([*lines, *(from_how_many(name, best) for name in laws)])


def from_how_many(decoder: str, best: Sequence[Pays]) -> str:
    """Return from how many devices on a wider tree pays."""
    own = [one for one in best if one.decoder == decoder]
    alone = next((one for one in own if one.devices == 1), None)
    if alone is None:
        return f"{decoder}: the costs cover none of its widths, or devices= lacks 1"
    wider = [one for one in own if one.nodes > alone.nodes and one.speed > WORTH]
    if not wider:
        return f"{decoder}: no wider tree pays on up to {max(one.devices for one in own)} devices"
    first = min(wider, key=lambda one: one.devices)
    return (
        f"{decoder}: from {first.devices} devices on a wider tree pays ({first.nodes:.0f} nodes a "
        f"step instead of {alone.nodes:.0f}): {first.speed:.2f}x over one device"
    )
