"""Predict speedups for draft models of several agreements, on recorded greedy text, without any
model. The agreement is the share of the target's tokens that the draft model ranks first.

    python scripts/reproduce/agreement.py results/agreement/recorded --out results/agreement
    python scripts/reproduce/agreement.py texts.jsonl --out results/real_text --real-text

Drafts are simulated, calls counted, and their time predicted from costs. Settings are chosen on one
prompt in three of each group; results are from the other prompts. Writes agreement.json,
agreement.md and a plot for each set of costs.

--real-text is for texts of a real model, JSONL of {id, category, turns: [{prompt, completion}]}.
They are tokenized with 32,000 SentencePiece ids (pip install 'ouroboros-decoding[recordings]').
Predictions after tokens that are not in the text were not recorded, so no decoder learns from them.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.replay.recording import RecordedRuns, read_recording, runs_of
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.replay.simulated_draft import DraftErrorModel, SimulatedDraft
from ouroboros.bench.report import style
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import provenance, without_paths
from ouroboros.bench.run.pair import PairSpec, load_tokenizer
from ouroboros.costs import Costs, Surface
from ouroboros.decoder_factory import decoder_config, needs_draft
from ouroboros.tuning.advise import Prediction, predict
from ouroboros.tuning.evidence import Evidence
from ouroboros.tuning.search import Space, search

CONTEXT = 512  # tokens of context for call costs
ALL = "all"  # the group of all prompts
COLUMNS = 3  # panels side by side
SPARE_IDS = 64  # unused ids in a renumbered vocabulary
COSTS = ("epyc", "flat")
HELD_OUT = 3  # settings are chosen on one prompt in three of each group
REFERENCE = PairSpec("reference", "reference/target", "reference/draft", dtype="float32")
PIECES = "SentencePiece, 32,000 ids (mistral-common's tokenizer.model.v1)"
RATIOS = (0.18, 0.3)  # cost of a draft call / target call, one node each
DECODERS = ["speculative", "prompt_lookup", "suffix_decoding", "lookahead", "ouroboros"]
DECODERS += ["ouroboros_text"]
AGREEMENTS = [0.5, 0.6, 0.7, 0.8, 0.88, 0.95]
RATES = OffTextRates(0.7, 0.04)
SPACES: dict[str, Space] = {  # settings to search; Ouroboros adapts to the costs instead
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
REAL_AGREEMENTS = [0.6, 0.7, 0.8, 0.88, 0.9]
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("recording", type=Path, help="a results folder with greedy in it, or JSONL of texts")
    add("--out", type=Path, required=True, help="where results go")
    add("--real-text", action="store_true", help="texts of a real model, see above")
    add("--per-group", type=int, help="prompts of each group, spread evenly; default: all")
    add("--max-new", type=int, help="new tokens of each text; default: as recorded")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    decoders = {name: decoder_config(name) for name in DECODERS}
    if options.real_text:
        tokenizer, tokens, groups = sentence_pieces(), PIECES, REAL_GROUPS
        rates, agreements = None, REAL_AGREEMENTS
        del decoders["lookahead"]
        for name in ("ouroboros", "ouroboros_text"):
            decoders[name]["recycle"] = False
    else:
        tokenizer, tokens = load_tokenizer(REFERENCE), "the reference pair's tokenizer"
        groups, rates, agreements = {}, RATES, AGREEMENTS
    recorded = runs_of(read_recording(options.recording, tokenizer), "greedy")
    tuned, shown = chosen(recorded, groups, options.per_group, options.max_new)
    rows = study(tuned, shown, decoders, agreements, rates)
    title = [
        f"{options.recording.name}: {len(shown.runs)} recorded greedy answers",
        f"draft simulated at agreement {', '.join(f'{a:g}' for a in agreements)} "
        f"({DraftErrorModel.load().source})",
        rates.title if rates else "unrecorded predictions are not simulated",
        f"settings chosen on {len(tuned.runs)} other answers",
        tokens,
        "predicted from counted calls alone",
    ]
    config = {name: str(value) for name, value in vars(options).items()}
    about = without_paths({"config": config, "provenance": provenance()})
    write(options.out, {**about, "title": " · ".join(title), "rows": rows})


def sentence_pieces() -> Callable[..., SimpleNamespace]:
    """Return a tokenizer with the 32,000 ids of Llama-like models, from mistral-common's data.

    The reference pair's tokenizer is made for code: with it, texts of real models would have more
    tokens and different repetition. Exits if the optional packages are not installed.
    """
    package = find_spec("mistral_common")
    if package is None or package.origin is None or find_spec("sentencepiece") is None:
        raise SystemExit("--real-text: pip install 'ouroboros-decoding[recordings]'")
    from sentencepiece import SentencePieceProcessor

    file = Path(package.origin).parent / "data" / "tokenizer.model.v1"
    pieces = SentencePieceProcessor(model_file=str(file))

    def tokenizer(text: str, *, add_special_tokens: bool = True) -> SimpleNamespace:
        return SimpleNamespace(input_ids=pieces.encode(text, add_bos=add_special_tokens))

    return tokenizer


def chosen(
    recorded: RecordedRuns,
    groups: Mapping[str, Sequence[str]],
    per_group: int | None,
    max_new: int | None,
) -> list[RecordedRuns]:
    """Split recorded runs by prompt into [runs for choosing settings, all other runs].

    Of each group, up to `per_group` evenly spaced prompts are used (None: all). `groups` maps a
    group's name to its categories; every other category is a group of its own. `max_new` lowers the
    recorded limit of new tokens (None: unchanged). Token ids are renumbered (see `renumbered`).
    """
    named = {category: name for name, categories in groups.items() for category in categories}
    runs = [replace(run, group=named.get(run.group, run.group)) for run in recorded.runs]
    group_of = pd.Series({run.example: run.group for run in runs})
    held: dict[str, bool] = {}  # by selected prompt
    for _, own in group_of.groupby(group_of, sort=False):
        count = min(per_group or len(own), len(own))
        kept = own.index[np.arange(count) * len(own) // count]
        held |= {example: at % HELD_OUT == HELD_OUT - 1 for at, example in enumerate(kept)}
    order = [*groups, *group_of]
    runs = [run for run in runs if run.example in held and run.new_tokens]
    runs.sort(key=lambda run: order.index(run.group))
    limits = [limit for limit in (max_new, recorded.max_new) if limit]
    whole = renumbered(replace(recorded, runs=runs, max_new=min(limits, default=1 << 30)))
    return [
        replace(whole, runs=[run for run in whole.runs if held[run.example] is wanted])
        for wanted in (True, False)
    ]


def renumbered(recorded: RecordedRuns) -> RecordedRuns:
    """Return the runs with token ids renumbered by first appearance in each run.

    This shrinks the simulated logits from tens of thousands of ids to hundreds. Counts stay the
    same, because decoders only compare ids; they must not keep state from run to run.
    """
    runs, size = [], 0
    for run in recorded.runs:
        names = {token: number for number, token in enumerate(sorted(recorded.eos))}

        def ids(tokens: Collection[int], names: dict[int, int] = names) -> tuple[int, ...]:
            return tuple(names.setdefault(token, len(names)) for token in tokens)

        prompt, new = ids(run.prompt), ids(run.new_tokens)
        off = {(at, ids(path)): ids([token])[0] for (at, path), token in run.predictions.items()}
        runs.append(replace(run, prompt=prompt, new_tokens=new, predictions=off))
        size = max(size, len(names))
    eos = frozenset(range(len(recorded.eos)))
    return replace(recorded, runs=runs, vocab_size=size + SPARE_IDS, eos=eos)


def with_ratio(costs: Costs, ratio: float) -> Costs:
    """Return costs that are the same at every context (those at `CONTEXT`), with the draft's scaled
    so that a draft call of one node costs `ratio` of a target call of one node."""
    assert costs.draft is not None

    def at_context(surface: Surface, factor: float = 1.0) -> Surface:
        sizes = next(iter(surface.ms.values()))
        row = {nodes: factor * surface.call_ms(nodes, CONTEXT) for nodes in sizes}
        return replace(surface, ms={math.inf: row})

    target, draft = at_context(costs.target), at_context(costs.draft)
    factor = ratio * target.call_ms(1, CONTEXT) / draft.call_ms(1, CONTEXT)
    return Costs(target, at_context(costs.draft, factor))


def study(
    tuned: RecordedRuns,
    shown: RecordedRuns,
    decoders: Mapping[str, Mapping],
    agreements: Sequence[float],
    rates: OffTextRates | None,
) -> list[dict]:
    """Predict speedups on `shown` with settings chosen on `tuned`; return a row for each decoder
    (configs by name), agreement, set of costs, ratio and prompt group.

    A row has the keys group, costs, ratio, decoder, agreement (None without a draft model), speedup
    (the fields of an `Interval`), prompts (their number) and settings. Without `rates`, decoders
    that read predictions that were not recorded raise `ValueError`.
    """
    rows, both = [], replace(tuned, runs=[*tuned.runs, *shown.runs])
    for agreement in tqdm([None, *agreements], desc="agreements", leave=False):
        draft = None if agreement is None else SimulatedDraft(agreement, both)
        counted: list[dict] = [{}, {}]
        for costs_name, ratio in product(COSTS, RATIOS):
            costs = with_ratio(Costs.load(costs_name), ratio)
            given: dict[str, Any] = {"draft": draft, "rates": rates and {"": rates}}
            choosing, showing = (
                Evidence(texts, costs, counted=known, **given)
                for texts, known in zip((tuned, shown), counted, strict=True)
            )
            plain = showing.counts("greedy", {}, {})
            groups = list(dict.fromkeys(sample.group for sample in plain))
            for name, config in decoders.items():
                if needs_draft(config) != (draft is not None):
                    continue
                best = fastest_settings(choosing, name, config)
                ours = showing.counts(name, config, best)
                for group in [*(groups if len(groups) > 1 else ()), ALL]:
                    base, own = ([s for s in of if group in (s.group, ALL)] for of in (plain, ours))
                    found = Prediction.of(base, own, costs)
                    if found.speedup is None:
                        raise ValueError(f"{name}: {found.failed}")
                    row = {"group": group, "costs": costs_name, "ratio": ratio, "decoder": name}
                    row |= {"agreement": agreement, "speedup": asdict(found.speedup)}
                    prompts = len({sample.example for sample in own})
                    rows.append(row | {"prompts": prompts, "settings": best})
    return rows


def fastest_settings(evidence: Evidence, name: str, config: Mapping) -> dict:
    """Return the settings in the decoder's search space with the highest predicted speed."""

    def rate(settings: Mapping) -> float:
        return predict(evidence, name, config, settings).tokens_per_s

    return search(rate, SPACES.get(name, {}), configured=config, rounds=1)


def write(out: Path, document: dict) -> None:
    """Write agreement.json (`document`: title, rows and provenance), its tables and plots; print
    the tables."""
    frame, title = pd.json_normalize(document["rows"]), document["title"]
    frame["cell"] = [Interval(**row["speedup"]).text() for row in document["rows"]]
    text = f"# {title}\n"
    shares = frame["agreement"].map("{:g}".format, na_action="ignore").fillna("-")
    cells = frame.assign(agreement=shares).groupby(["costs", "ratio"], sort=False)
    for (costs, ratio), rows in cells:
        index = ["decoder", "agreement"]
        table = rows.pivot_table("cell", index, "group", aggfunc="first", sort=False)
        table = table[list(dict.fromkeys(rows["group"]))].reset_index()
        text += f"\nSpeedup over greedy, costs {costs}, a draft call {ratio:g} of a target call\n\n"
        text += table.to_markdown(index=False) + "\n"
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    folder = ResultsFolder(out)
    folder.write_json("agreement.json", document)
    folder.write_text("agreement.md", text)
    for costs in dict.fromkeys(frame["costs"]):
        rows = frame[frame["costs"] == costs]
        figure = style.with_title(agreement_curves(rows), f"costs {costs} · {title}")
        style.save(figure, out / f"agreement_{costs}.png")


@style.styled
def agreement_curves(rows: pd.DataFrame) -> Figure:
    """Draw speedup against the draft's agreement, with a panel per group of prompts.

    `rows` is a frame of `study`'s rows with one set of costs. The line style shows the draft's cost
    ratio; decoders without a draft model are horizontal lines.
    """
    groups, ratios = list(dict.fromkeys(rows["group"])), sorted(set(rows["ratio"]))
    rows = rows.rename(columns={"speedup.value": "speedup"}).sort_values("agreement")
    marks = style.decoder_marks(list(dict.fromkeys(rows["decoder"])))
    down, across = -(-len(groups) // COLUMNS), min(COLUMNS, len(groups))
    figure = style.new_figure(1.2 + (2.5 if len(groups) > 1 else 3.6) * down)
    panels = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    for axes, group in zip(panels, groups, strict=False):
        own = rows[rows["group"] == group]
        for (name, ratio), line in own.groupby(["decoder", "ratio"], sort=False):
            mark, dashes = marks[str(name)], style.LINES[ratios.index(ratio) % len(style.LINES)]
            if line["agreement"].notna().all():
                look = mark.points(linestyle=dashes, markersize=4)
                look |= {"label": f"{name}, a draft call costs {ratio:g}"}
                error = style.reach(line, "speedup")
                axes.errorbar(line["agreement"], line["speedup"], yerr=error, **look)
            elif ratio == ratios[0]:
                axes.axhline(line["speedup"].iloc[0], color=mark.colour, label=f"{name}, no draft")
        axes.set(title=f"{group}, {own['prompts'].iloc[0]} prompts")
        axes.grid(axis="y")
    figure.supxlabel("agreement of the draft", fontsize=10)
    figure.supylabel("speedup over greedy", fontsize=10)
    title = "Error bars: 95 % bootstrap over prompts, paired"
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, title=title, loc="outside lower center", ncols=3, title_fontsize=9)
    return figure


if __name__ == "__main__":
    main()
