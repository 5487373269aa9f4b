"""What a draft of each agreement is worth on recorded greedy text, with no model at all.

    python scripts/reproduce/agreement.py results/agreement/recorded --out results/agreement
    python scripts/reproduce/agreement.py texts.jsonl --out results/real_text --real-text
    python scripts/reproduce/agreement.py --measure draft_errors.json

Drafts are simulated, calls counted, their time predicted from costs. One prompt in three of each
group chooses settings, the figures are of the others. Writes agreement.json, agreement.md and a
plot for each set of costs.

--real-text is for texts of a real model, JSONL of {id, category, turns: [{prompt, completion}]}.
They are tokenized with 32,000 SentencePiece ids (pip install 'ouroboros-decoding[recordings]'), and
no decoder learns from predictions off the text, which such a recording does not hold. --measure
measures the reference pair's ranks and confidences instead, of which a simulated draft is made.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from sentence_pieces import NAME, sentence_pieces
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.replay.recording import (
    RecordedRun,
    RecordedRuns,
    read_recording,
    runs_of,
)
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.replay.simulated_draft import (
    CHOICES,
    NOWHERE,
    DraftErrorModel,
    SimulatedDraft,
    repeats,
)
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.marks import LINES, decoder_marks
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import provenance, without_paths
from ouroboros.bench.run.loop import eos_ids
from ouroboros.bench.run.pair import PairSpec, load_pair, load_tokenizer
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.cli import CONF
from ouroboros.costs import Costs, Surface
from ouroboros.decode import RootOnly, decode
from ouroboros.decoders import decoder_config
from ouroboros.engine.model import CachedModel
from ouroboros.select import argmax
from ouroboros.tree import TokenTree
from ouroboros.tuning.advise import Evidence, Prediction
from ouroboros.tuning.search import Space, search

CONTEXT = 512  # tokens, of the calls whose costs are taken
ALL = "all"
COLUMNS = 3  # panels of a plot side by side
SPARE_IDS = 64  # ids that a renumbered vocabulary has beyond those of its longest run
ROWS = 48  # confidence rows kept of each rank
REFERENCE = PairSpec("reference", "reference/target", "reference/draft", dtype="float32")
HELD_OUT = 3
RATIOS = (0.18, 0.3)  # of a draft call to a target call, one node each
DECODERS = ["greedy", "speculative", "prompt_lookup", "suffix_decoding", "lookahead", "ouroboros"]
DECODERS += ["ouroboros_text"]
AGREEMENTS: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.88, 0.95)
RATES = OffTextRates(0.7, 0.04)
SPACES: dict[str, Space] = {  # chosen on the held-out prompts; Ouroboros decides by the costs
    "speculative": {
        "gamma": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16],
        "confidence": [0.0, 0.2, 0.3, 0.4],
    },
    "prompt_lookup": {"num_tokens": [4, 8, 10, 15, 24], "max_ngram_size": [2, 3, 4]},
    "suffix_decoding": {
        "factor": [1, 2, 4, 8],
        "least": [0.02, 0.1],
        "max_tokens": [15, 31, 63],
    },
    "lookahead": {"window_size": [0, 3, 6], "verification_set_size": [3, 6, 12]},
}
REAL_AGREEMENTS = (0.6, 0.7, 0.8, 0.88, 0.9)
REAL_GROUPS = {
    "coding": ["coding"],
    "chat": ["writing", "roleplay", "reasoning", "stem", "humanities"],
    "maths": ["math", "math_reasoning"],
    "extraction": ["extraction"],
    "summaries": ["summarization"],
    "retrieval": ["rag"],
    "translation": ["translation"],
    "questions": ["qa"],
}


@dataclass(frozen=True)
class DraftValue:
    """The speedup over greedy of a decoder on a group of prompts, by the costs of that name with a
    draft call of `ratio` target calls.

    `agreement` is its draft's, None without a draft. `settings` were chosen on other prompts.
    """

    group: str
    costs: str
    ratio: float
    decoder: str
    agreement: float | None
    speedup: Interval
    prompts: int
    settings: Mapping[str, object] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    if options.measure:
        measure(options.measure)
        return
    if options.recording is None:
        raise SystemExit("give a recording: a results folder with greedy in it, or JSONL of texts")
    decoders = {name: decoder_config(name) for name in DECODERS}
    rates: OffTextRates | None = RATES
    agreements, groups = AGREEMENTS, {}
    tokenizer, tokens = load_tokenizer(REFERENCE), "the reference pair's tokenizer"
    if options.real_text:
        agreements, rates, groups = REAL_AGREEMENTS, None, REAL_GROUPS
        decoders.pop("lookahead")
        for name in ("ouroboros", "ouroboros_text"):
            decoders[name]["recycle"] = False
        tokenizer, tokens = sentence_pieces(), NAME
    recorded = chosen(
        runs_of(read_recording(options.recording, tokenizer), "greedy"),
        groups,
        per_group=options.per_group,
        max_new=options.max_new,
    )
    machines = {
        (name, ratio): with_ratio(Costs.load(name), ratio)
        for name in options.costs
        for ratio in RATIOS
    }
    values = list(
        draft_values(
            recorded, decoders, options.agreement or agreements, machines, tokenizer, rates
        )
    )
    held = held_out_examples(recorded.runs, HELD_OUT)
    shown = [run for run in recorded.runs if run.example not in held]
    tried = ", ".join(f"{one:g}" for one in options.agreement or agreements)
    parts = [
        f"{options.recording.name}: {len(shown)} recorded greedy answers",
        f"draft simulated at agreement {tried} ({DraftErrorModel.load().source})",
        "no predictions off the text" if rates is None else rates.title,
        f"settings chosen on {len(recorded.runs) - len(shown)} other answers",
        tokens,
        "predicted from counted calls alone",
    ]
    write(options, values, " · ".join(parts))


def chosen(
    recorded: RecordedRuns, groups: dict, *, per_group: int | None, max_new: int | None
) -> RecordedRuns:
    """Return the runs in named groups, at most `per_group` prompts of each, spread evenly."""
    named = {category: name for name, categories in groups.items() for category in categories}
    runs = [replace(run, group=named.get(run.group, run.group)) for run in recorded.runs]
    by_group: dict[str, list[str]] = {}
    for run in runs:
        if run.example not in by_group.setdefault(run.group, []):
            by_group[run.group].append(run.example)
    kept: set[str] = set()
    for examples in by_group.values():
        step = max(1.0, len(examples) / (per_group or len(examples)))
        kept |= {examples[int(at * step)] for at in range(int(len(examples) / step))}
    order = [*groups, *by_group]
    runs = [run for run in runs if run.example in kept and run.new_tokens]
    runs.sort(key=lambda run: order.index(run.group))
    limits = [limit for limit in (max_new, recorded.max_new) if limit]
    return renumbered(replace(recorded, runs=runs, max_new=min(limits, default=1 << 30)))


def draft_values(
    recorded: RecordedRuns,
    decoders: Mapping[str, Mapping],
    agreements: Sequence[float],
    machines: Mapping[tuple[str, float], Costs],
    tokenizer,
    rates: OffTextRates | None,
) -> Iterator[DraftValue]:
    """Yield the value of every decoder (configs by name) for each agreement, machine and group.

    `machines` are costs by (name, ratio), see `with_ratio`. Held-out prompts choose settings in
    `SPACES`. Without `rates` decoders that read predictions off the text are refused.
    """
    chosen = held_out_examples(recorded.runs, HELD_OUT)
    parts = [
        replace(recorded, runs=[r for r in recorded.runs if (r.example in chosen) == held])
        for held in (True, False)
    ]
    drafting = [name for name, own in decoders.items() if "draft" in own]
    others = [name for name in decoders if name not in ("greedy", *drafting)]
    rounds = [(None, others), *((one, drafting) for one in agreements)]
    for agreement, names in tqdm(rounds, desc="agreements", leave=False):
        draft = SimulatedDraft.of(agreement, recorded, tokenizer) if agreement is not None else None
        counted: tuple[dict, dict] = {}, {}
        for (costs_name, ratio), costs in machines.items():
            given = {"draft": draft, "rates": None if rates is None else {"": rates}}
            tried, shown = (
                Evidence(part, costs, **given, counted=known)  # type: ignore[arg-type]
                for part, known in zip(parts, counted, strict=True)
            )
            for name in names:
                config, space = decoders[name], SPACES.get(name, {})

                def rate(settings, name=name, config=config, tried=tried) -> float:
                    return tried.predicted(name, config, settings).tokens_per_s

                best = search(rate, space, configured=config, rounds=1)
                sides = shown.counts("greedy", {}, {}), shown.counts(name, config, best)
                groups = list(dict.fromkeys(sample.group for sample in sides[1]))
                for group in [*(groups if len(groups) > 1 else ()), ALL]:
                    plain, own = ([s for s in o if group in (s.group, ALL)] for o in sides)
                    found = Prediction.of(plain, own, costs)
                    if found.speedup is None:
                        raise ValueError(f"{name}: {found.failed}")
                    prompts = len({sample.example for sample in own})
                    setting = group, costs_name, ratio, name, agreement
                    yield DraftValue(*setting, found.speedup, prompts, best)


def held_out_examples(runs: Sequence[RecordedRun], step: int) -> set[str]:
    """Return every `step`-th prompt of each group."""
    by_group: dict[str, dict[str, None]] = {}
    for run in runs:
        by_group.setdefault(run.group, {})[run.example] = None
    return {one for examples in by_group.values() for one in [*examples][step - 1 :: step]}


def with_ratio(costs: Costs, ratio: float) -> Costs:
    """Return the costs of calls alone, at every context those at `CONTEXT`, with the draft's calls
    scaled so that one of a single node costs `ratio` of the target's.

    Raises `ValueError` for costs without a draft.
    """
    if costs.draft is None:
        raise ValueError("the costs have no draft model: give draft_ms")

    def flat(surface: Surface, factor: float = 1.0) -> Surface:
        sizes = next(iter(surface.ms.values()))
        row = {nodes: factor * surface.call_ms(nodes, CONTEXT) for nodes in sizes}
        return Surface({math.inf: row}, padded=surface.padded)

    target, draft = flat(costs.target), flat(costs.draft)
    factor = ratio * target.call_ms(1, CONTEXT) / draft.call_ms(1, CONTEXT)
    return Costs(target, flat(costs.draft, factor))


def pays_from(values: Sequence[DraftValue]) -> dict[str, tuple[float | None, bool]]:
    """Return for each decoder with a draft the agreement from which on it is faster than the best
    decoder without one, on straight lines between the agreements tried.

    `values` are of one group under one set of costs. (None, False): at no agreement that was tried;
    (a, True): already at the lowest one, a.
    """
    without = max((one.speedup.value for one in values if one.agreement is None), default=1.0)
    found: dict[str, tuple[float | None, bool]] = {}
    for name in dict.fromkeys(one.decoder for one in values if one.agreement is not None):
        line = sorted(
            (one.agreement, one.speedup.value - without)
            for one in values
            if one.decoder == name and one.agreement is not None
        )
        below = [at for at, (_, gain) in enumerate(line) if gain < 0]
        if line[-1][1] < 0:
            found[name] = None, False
        elif not below:
            found[name] = line[0][0], True
        else:
            (left, low), (right, high) = line[below[-1]], line[below[-1] + 1]
            found[name] = left + (right - left) * -low / (high - low), False
    return found


def renumbered(recorded: RecordedRuns) -> RecordedRuns:
    """Return the runs with each one's token ids numbered by first appearance.

    Decoders do not depend on the ids themselves, and rows of logits become hundreds wide instead of
    tens of thousands. Valid for counts alone, and only if nothing is carried from run to run.
    """
    runs, size = [], 0
    for run in recorded.runs:
        names = {token: number for number, token in enumerate(sorted(recorded.eos))}

        def ids(tokens: Sequence[int], names: dict[int, int] = names) -> tuple[int, ...]:
            return tuple(names.setdefault(token, len(names)) for token in tokens)

        prompt, new = ids(run.prompt), ids(run.new_tokens)
        off = {(at, ids(path)): ids([token])[0] for (at, path), token in run.predictions.items()}
        runs.append(replace(run, prompt=prompt, new_tokens=new, predictions=off))
        size = max(size, len(names))
    eos = frozenset(range(len(recorded.eos)))
    return replace(recorded, runs=runs, vocab_size=size + SPARE_IDS, eos=eos)


def write(options: argparse.Namespace, values: Sequence[DraftValue], title: str) -> None:
    """Print the tables; write them, the values and the plots to --out."""
    frame = pd.DataFrame([asdict(one) | {"cell": one.speedup.text()} for one in values])
    frame["agreement"] = frame["agreement"].map("{:g}".format, na_action="ignore").fillna("-")
    pays: dict[tuple, dict] = {}
    for (costs, ratio, group), rows in frame.groupby(["costs", "ratio", "group"], sort=False):
        own = [values[index] for index in rows.index]
        highest = max(one.agreement for one in own if one.agreement is not None)
        for name, (agreement, lowest) in pays_from(own).items():
            known = f"above {highest:g}" if agreement is None else f"{agreement:.2f}"
            line = pays.setdefault((costs, f"{ratio:g}", name), {})
            line[group] = f"at most {known}" if lowest else known
    starts = pd.DataFrame.from_dict(pays, orient="index")
    starts = starts.rename_axis(["costs", "draft call", "decoder"]).reset_index().fillna("-")
    text = f"# {title}\n\nFrom which agreement on a draft pays beside what needs none\n\n"
    text += starts.to_markdown(index=False) + "\n"
    for (costs, ratio), rows in frame.groupby(["costs", "ratio"], sort=False):
        index = ["decoder", "agreement"]
        table = rows.pivot_table("cell", index, "group", aggfunc="first", sort=False)
        table = table[list(dict.fromkeys(rows["group"]))].reset_index()
        text += f"\nSpeedup over greedy, costs {costs}, a draft call {ratio:g} of a target call\n\n"
        text += table.to_markdown(index=False) + "\n"
    print(text)
    if options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    folder = ResultsFolder(options.out)
    config = {name: str(value) for name, value in vars(options).items()}
    about = without_paths({"config": config, "provenance": provenance()})
    found = {**about, "title": title, "rows": [asdict(one) for one in values]}
    folder.write_json("agreement.json", found)
    folder.write_text("agreement.md", text)
    for costs in dict.fromkeys(one.costs for one in values):
        figure = agreement_curves([one for one in values if one.costs == costs])
        style.with_title(figure, f"costs {costs} · {title}")
        style.save(figure, *(options.out / f"agreement_{costs}.{kind}" for kind in ("png", "svg")))


@style.styled
def agreement_curves(rows: Sequence[DraftValue]) -> Figure:
    """Draw speedup over the draft's agreement, a panel per group of prompts.

    `rows` share one set of costs. The line style is the draft's cost ratio; decoders without a
    draft are level lines.
    """
    frame = pd.json_normalize([asdict(row) for row in rows])
    frame = frame.rename(columns={"speedup.value": "speedup"}).sort_values("agreement")
    groups, ratios = list(dict.fromkeys(row.group for row in rows)), sorted(set(frame["ratio"]))
    marks = decoder_marks(list(dict.fromkeys(frame["decoder"])))
    down, across = -(-len(groups) // COLUMNS), min(COLUMNS, len(groups))
    figure = style.new_figure(1.2 + (2.5 if len(groups) > 1 else 3.6) * down)
    panels = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    for axes, group in zip(panels, groups, strict=False):
        own = frame[frame["group"] == group]
        for (name, ratio), line in own.groupby(["decoder", "ratio"], sort=False):
            mark = marks[str(name)]
            if line["agreement"].notna().all():
                look = mark.points(linestyle=LINES[ratios.index(ratio) % len(LINES)], markersize=4)
                look |= {"label": f"{name}, a draft call costs {ratio:g}"}
                error = style.reach(line, "speedup")
                axes.errorbar(line["agreement"], line["speedup"], yerr=error, **look)
            elif ratio == ratios[0]:
                value, low, high = line.iloc[0][["speedup", "speedup.low", "speedup.high"]]
                axes.axhline(value, color=mark.colour, linewidth=1.4, label=f"{name}, no draft")
                if pd.notna(low):
                    axes.axhspan(low, high, color=mark.colour, alpha=0.12, linewidth=0)
        axes.set_title(f"{group}, {own['prompts'].iloc[0]} prompts")
        axes.grid(axis="y")
    for axes in panels[max(0, len(groups) - across) : len(groups)]:
        axes.set_xlabel("agreement of the draft")
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    figure.supylabel("speedup over greedy", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    what = "Error bars and bands: 95 % bootstrap over prompts, paired"
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "title_fontsize": 9}
    figure.legend(handles, labels, title=what, **place)
    return figure


def measure(path: Path) -> None:
    """Measure how the reference pair's draft errs on development text, and write it."""
    pair = load_pair(REFERENCE, with_draft=True)
    assert pair.draft is not None
    task = Prompts(path=str(Path(CONF, "task", "development.jsonl")))
    prompts = [pair.target.tokenizer(one.prompt).input_ids for one in task.load()[:30:3]]
    about = {"pair": "the reference pair", "dtype": REFERENCE.dtype, "task": "development.jsonl"}
    options: dict[str, Any] = {"max_new": task.max_new, "eos": eos_ids(pair.target), "about": about}
    found = measured_errors(pair.target, pair.draft, prompts, **options)
    path.write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
    print(found.about)


def measured_errors(
    target: CachedModel,
    draft: CachedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new: int,
    eos: Collection[int] = (),
    about: Mapping[str, object],
) -> DraftErrorModel:
    """Measure the draft's choices along the target's greedy texts, one draft call for a text."""
    rows: dict[int, list[list[float]]] = {rank: [] for rank in range(CHOICES + 1)}
    agreed: dict[bool, list[bool]] = {True: [], False: []}
    for prompt in map(list, prompts):
        target.empty()
        draft.empty()
        text = decode(target, RootOnly(), prompt, max_new=max_new, eos=eos).new_tokens
        tree = TokenTree.chain(prompt[-1], text[:-1])
        logits = draft.score(draft.new_sequence(), prompt, tree)
        top = logits.double().softmax(-1).topk(CHOICES, dim=-1)
        ids, shares = top.indices.tolist(), top.values.tolist()
        first = argmax(logits, prompt, tree)
        again = repeats([*prompt, *text])[len(prompt) :]
        for at, truth in enumerate(text):
            choices = [first[at], *ids[at][1:]]
            rank = choices.index(truth) + 1 if truth in choices else NOWHERE
            rows[rank].append(shares[at])
            agreed[again[at]].append(rank == 1)
    lacking = [rank for rank, own in rows.items() if not own]
    if lacking or not all(0 < np.mean(own) < 1 for own in agreed.values()):
        raise ValueError(
            f"too few positions (none of rank {lacking}, 0: none of the choices): give more prompts"
        )
    misses = [row for rank, own in rows.items() if rank != 1 for row in own]
    at_repeats, elsewhere = float(np.mean(agreed[True])), float(np.mean(agreed[False]))
    count = len(misses) + len(rows[1])
    shares_of = {
        "agreement": len(rows[1]) / count,
        "agreement_at_repeats": at_repeats,
        "agreement_elsewhere": elsewhere,
        "repeats": len(agreed[True]) / count,
        "mean_first_where_right": float(np.mean([row[0] for row in rows[1]])),
        "mean_first_where_wrong": float(np.mean([row[0] for row in misses])),
    }
    found = {**about, "prompts": len(prompts), "places": count}
    found |= {name: round(share, 4) for name, share in shares_of.items()}
    confidence = {}
    for rank, own in rows.items():  # rows evenly spread by first probability
        ordered, kept = sorted(own, reverse=True), min(ROWS, len(own))
        picked = [ordered[int((index + 0.5) * len(ordered) / kept)] for index in range(kept)]
        confidence[rank] = [tuple(round(share, 4) for share in row) for row in picked]
    ranks = {rank: round(len(rows[rank]) / len(misses), 4) for rank in range(2, CHOICES + 1)}
    odds = at_repeats / (1 - at_repeats) * (1 - elsewhere) / elsewhere
    return DraftErrorModel(ranks, confidence, round(odds, 4), found)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("recording", nargs="?", type=Path, help="a results folder, a recording, JSONL of texts")
    add("--out", type=Path, help="where results go; default: printed only")
    add("--real-text", action="store_true", help="texts of a real model, see above")
    add("--agreement", type=float, nargs="+", help="shares of first choices that are right")
    add("--costs", nargs="+", default=["epyc", "flat"], help="names or files of costs")
    add("--per-group", type=int, help="prompts of each group, spread evenly; default: all")
    add("--max-new", type=int, help="new tokens of each text; default: as recorded")
    add("--measure", type=Path, metavar="FILE", help="measure the pair's draft errors instead")
    return found


if __name__ == "__main__":
    main()
