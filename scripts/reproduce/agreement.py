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
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch
from sentence_pieces import NAME, sentence_pieces

from ouroboros.bench.replay.draft_errors import DraftErrorModel
from ouroboros.bench.replay.recording import RecordedRuns, read_recording, renumbered, runs_of
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.report.plots import style
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import provenance, without_paths
from ouroboros.bench.run.loop import eos_ids
from ouroboros.bench.run.pair import PairSpec, load_pair, load_tokenizer
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.cli import CONF
from ouroboros.costs import Costs
from ouroboros.decoders import decoder_config
from ouroboros.tuning.agreement import (
    DraftValue,
    draft_values,
    held_out_examples,
    pays_from,
    with_ratio,
)
from ouroboros.tuning.plots import agreement_curves

REFERENCE = PairSpec("reference", "reference/target", "reference/draft", dtype="float32")
HELD_OUT = 3
RATIOS = (0.18, 0.3)  # of a draft call to a target call, one node each
DECODERS = ("greedy", "speculative", "prompt_lookup", "suffix_decoding", "lookahead", "ouroboros")
DECODERS += ("ouroboros_text",)
AGREEMENTS = (0.5, 0.6, 0.7, 0.8, 0.88, 0.95)
RATES = OffTextRates(0.7, 0.04)
SPACES = {  # settings chosen on the held-out prompts; Ouroboros decides by the costs itself
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


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    if options.measure:
        measure(options.measure)
        return
    if options.recording is None:
        raise SystemExit("give a recording: a results folder with greedy in it, or JSONL of texts")
    decoders = {name: decoder_config(name) for name in DECODERS}
    agreements, rates, groups = AGREEMENTS, RATES, {}
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
            *(recorded, decoders, options.agreement or agreements, machines, tokenizer),
            spaces=SPACES,
            rates=rates,
            held_out=HELD_OUT,
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
    rows = [asdict(one) for one in values]
    folder.write_json("agreement.json", {**about, "title": title, "rows": rows})
    folder.write_text("agreement.md", text)
    for costs in dict.fromkeys(one.costs for one in values):
        figure = agreement_curves([one for one in values if one.costs == costs])
        style.with_title(figure, f"costs {costs} · {title}")
        style.save(figure, *(options.out / f"agreement_{costs}.{kind}" for kind in ("png", "svg")))


def measure(path: Path) -> None:
    """Measure how the reference pair's draft errs on development text, and write it."""
    pair = load_pair(REFERENCE, with_draft=True)
    assert pair.draft is not None
    task = Prompts(path=str(Path(CONF, "task", "development.jsonl")))
    prompts = [pair.target.tokenizer(one.prompt).input_ids for one in task.load()[:30:3]]
    about = {"pair": "the reference pair", "dtype": REFERENCE.dtype, "task": "development.jsonl"}
    options = {"max_new": task.max_new, "eos": eos_ids(pair.target), "about": about}
    found = DraftErrorModel.measure(pair.target, pair.draft, prompts, **options)
    found.save(path)
    print(found.about)


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
