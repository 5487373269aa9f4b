"""Measure a reference pair and write its model card.

    python scripts/reference_pair/evaluate.py --pair ouroboros/reference --work WORK

Measures held-out loss by kind of text; agreement of draft and target by temperature, and by
position in held-out documents; repetition in completions of HumanEval prompts, and the temperature
at which it equals that of real models; samples and loss curves. Writes `evaluation.json` and
`CARD.md` to the pair's folder; the last line on stdout is the same JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jinja2 import StrictUndefined, Template
from matplotlib.figure import Figure
from tqdm import tqdm
from train import heldout_loss

from ouroboros.bench.metrics.metrics import repetition
from ouroboros.bench.run.config import Sampling, derive_seed
from ouroboros.bench.run.loop import StopStrings, eos_ids, text_of
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.calls import alone, predict
from ouroboros.decode import RootOnly, stream
from ouroboros.engine.model import CachedModel
from ouroboros.tree import TokenTree

TEMPERATURES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
BY_POSITION = (0.0, 0.5, 0.8)
MATCHED = 0.14  # share of repeated 4-grams in greedy text of real code models
EDGES = (0, 512, 2048, 4096)  # limits of the ranges of positions, in tokens
MAX_NEW = 128
SHOWN = ("HumanEval/0", "HumanEval/23", "HumanEval/53")
DOCUMENTS = 12  # the longest ones, so that every range covers the same documents
LOSS_TOKENS = 1024  # tokens of each held-out document whose loss is measured


@torch.inference_mode()
def agreement_by_position(
    target: CachedModel, draft: CachedModel, texts: Sequence[str], *, seed: int
) -> dict[str, dict[str, float]]:
    """Return the agreement in held-out documents, by temperature and range of positions: the share
    of positions at which both models choose the same token with shared noise."""
    rows = [target.tokenizer(text).input_ids[: EDGES[-1]] for text in texts]
    agreed, seen = np.zeros((len(BY_POSITION), EDGES[-1])), np.zeros(EDGES[-1])
    for number, row in enumerate(tqdm(sorted(rows, key=len)[-DOCUMENTS:], desc="by position")):
        generator = torch.Generator().manual_seed(derive_seed(seed, "by position", number))
        logits = [m.model(torch.tensor([row])).logits[0].float() for m in (target, draft)]
        noise = -torch.empty_like(logits[0]).exponential_(generator=generator).log()
        for index, t in enumerate(BY_POSITION):
            first, second = ((x + t * noise).argmax(-1) for x in logits)
            agreed[index, : len(row)] += (first == second).numpy()
        seen[: len(row)] += 1
    counts = np.add.reduceat(seen, EDGES[:-1])
    shares = np.add.reduceat(agreed, EDGES[:-1], axis=1) / np.maximum(counts, 1)
    names = [f"{low}-{high}" for low, high in itertools.pairwise(EDGES)]
    return {
        str(t): {
            name: share for name, share, count in zip(names, own, counts, strict=True) if count
        }
        for t, own in zip(BY_POSITION, shares.tolist(), strict=True)
    }


def on_humaneval(
    target: CachedModel, draft: CachedModel, temperature: float, *, seed: int, limit: int | None
) -> dict:
    """Return agreement, repetition and samples over the first `limit` problems (None: all)."""
    task, rows, shown = HumanEval(), [], {}
    sampling = Sampling(seed=seed, temperature=temperature)
    stop = StopStrings(target.tokenizer, task.stop)
    for example in tqdm(list(task.load())[:limit], desc=f"T={temperature}", mininterval=10):
        prompt = target.tokenizer(example.prompt).input_ids
        choose = sampling.choose(example.id, 0, vocab=target.vocab_size)
        target.empty()
        draft.empty()
        eos, plain = eos_ids(target), RootOnly()
        for trace in stream(target, plain, prompt, max_new=MAX_NEW, eos=eos, choose=choose):
            new = trace.new_tokens
            if (keep := stop(new)) is not None:  # the benchmark's stop string
                new = new[:keep]
                break
        tree = TokenTree.chain(prompt[-1], new[:-1])
        drafted = alone(predict(draft, draft.new_sequence(), prompt, tree, choose))
        agreed = sum(map(operator.eq, drafted, new))
        rows.append({"tokens": len(new), "agreed": agreed, "repetition": repetition(new)})
        if example.id in SHOWN:
            shown[example.id] = [example.prompt, text_of(target.tokenizer, new)]
    found = pd.DataFrame(rows)
    return {
        "prompts": len(found),
        "agreement": float(found["agreed"].sum() / found["tokens"].sum()),
        "repetition_rate": float(found["repetition"].mean()),
        "above_30_percent": float((found["repetition"].dropna() > 0.3).mean()),
        "mean_new_tokens": float(found["tokens"].mean()),
        "samples": shown,
    }


def matched_temperature(rates: dict[float, float], wanted: float) -> float | None:
    """Return the temperature at which the repetition rate is `wanted`, interpolated between
    measured temperatures; None if no two neighbouring rates enclose it.

    >>> matched_temperature({0.0: 0.25, 0.5: 0.15, 0.8: 0.05}, 0.14)
    0.53
    """
    for (low, above), (high, below) in itertools.pairwise(sorted(rates.items())):
        if above >= wanted >= below and above > below:
            return round(low + (high - low) * (above - wanted) / (above - below), 2)
    return None


def curve(work: Path, out: Path) -> None:
    """Draw the loss curves of both models (their losses are of different kinds)."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    titles = {"target": "Target: next-token loss", "draft": "Draft: divergence from the target"}
    for axis, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        rows = pd.read_json(work / name / "curve.jsonl", lines=True)
        axis.plot(rows["tokens"] / 1e6, rows["loss"], lw=1.5)
        axis.set(title=title, xlabel="training tokens (millions)", ylabel="nats per token")
        axis.set_ylim(0, min(6.0, 1.05 * rows["loss"].max()))
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)


def facts_of(pair: Path, work: Path, name: str, model: CachedModel) -> dict:
    """Return the card's facts about a model: its training summary and its weights."""
    config, network = model.model.config, model.model
    total = sum(p.numel() for p in network.parameters())
    heads = f"{config.num_attention_heads} / {config.num_key_value_heads}"
    return json.loads((work / name / "summary.json").read_text()) | {
        "parameters": total,
        "inner": total - network.get_input_embeddings().weight.numel(),
        "shape": f"{config.num_hidden_layers}, {config.hidden_size}, {heads}",
        "weights_mb": sum(p.stat().st_size for p in (pair / name).glob("*.safetensors")) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pair", type=Path, required=True)
    add("--work", type=Path, required=True, help="folder of the training run")
    add("--hardware", default="2 CPU cores with AMX, shared with other work")
    add("--history", default="", help="a sentence on earlier trainings, for the card")
    add("--prompts", type=int, help="number of HumanEval prompts; default: all")
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    pair = {
        name: CachedModel.from_pretrained(str(args.pair / name), dtype=torch.float32)
        for name in ("target", "draft")
    }
    manifest, heldout = (
        json.loads((args.work / f"{name}.json").read_text()) for name in ("manifest", "heldout")
    )
    target, draft = pair["target"], pair["draft"]
    humaneval = {
        str(t): on_humaneval(target, draft, t, seed=args.seed, limit=args.prompts)
        for t in TEMPERATURES
    }
    rates = {float(t): result["repetition_rate"] for t, result in humaneval.items()}
    found = {
        "loss": {
            name: {
                kind: heldout_loss(model.model, model.tokenizer, texts, LOSS_TOKENS)
                for kind, texts in heldout.items()
            }
            for name, model in pair.items()
        },
        "humaneval": humaneval,
        "matched_temperature": matched_temperature(rates, MATCHED),
        "by_position": agreement_by_position(target, draft, heldout["module"], seed=args.seed),
    }
    (args.pair / "evaluation.json").write_text(json.dumps(found, indent=1))
    (args.pair / "manifest.json").write_text(json.dumps(manifest, indent=1))
    curve(args.work, args.pair / "loss_curve.png")
    facts = {name: facts_of(args.pair, args.work, name, model) for name, model in pair.items()}
    source = Path(__file__).with_name("card.md.jinja").read_text("utf-8")
    template = Template(source, keep_trailing_newline=True, undefined=StrictUndefined)
    about = {"hardware": args.hardware, "history": args.history, "manifest": manifest}
    card = template.render(**facts, **found, **about, max_new=MAX_NEW, matched=MATCHED)
    (args.pair / "CARD.md").write_text(card)
    for result in humaneval.values():
        del result["samples"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
