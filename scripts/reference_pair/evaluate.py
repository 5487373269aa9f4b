"""Measure a reference pair, as its model card ouroboros/reference/CARD.md reports it.

    python scripts/reference_pair/evaluate.py --pair ouroboros/reference --work WORK

Measures:

- held-out loss by kind of text
- by temperature, on HumanEval prompts: agreement of draft and target, and repetition rate
- the temperature at which text is as repetitive as real models' text

Writes `evaluation.json` and the corpus' `manifest.json` to the pair's folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm
from train import heldout_loss

from ouroboros.bench.metrics.metrics import repetition
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.loop import StopStrings, eos_ids
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.calls import alone, predict
from ouroboros.decode import RootOnly, stream
from ouroboros.engine.model import CachedModel
from ouroboros.tree import TokenTree

TEMPERATURES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
MATCHED = 0.14  # share of repeated 4-grams that greedy text of real code models has
MAX_NEW = 128
LOSS_TOKENS = 1024  # of each held-out document


def on_humaneval(
    target: CachedModel, draft: CachedModel, temperature: float, *, limit: int | None
) -> dict:
    """Return agreement and repetition over the first `limit` problems (None: all)."""
    task, rows = HumanEval(), []
    sampling = Sampling(temperature=temperature)
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
    found = pd.DataFrame(rows)
    return {
        "prompts": len(found),
        "agreement": float(found["agreed"].sum() / found["tokens"].sum()),
        "repetition_rate": float(found["repetition"].mean()),
        "above_30_percent": float((found["repetition"].dropna() > 0.3).mean()),
        "mean_new_tokens": float(found["tokens"].mean()),
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pair", type=Path, required=True)
    add("--work", type=Path, required=True, help="folder of the training run")
    add("--prompts", type=int, help="number of HumanEval prompts; default: all")
    args = parser.parse_args()
    pair = {
        name: CachedModel.from_pretrained(str(args.pair / name), dtype=torch.float32)
        for name in ("target", "draft")
    }
    manifest, heldout = (
        json.loads((args.work / f"{name}.json").read_text()) for name in ("manifest", "heldout")
    )
    target, draft = pair["target"], pair["draft"]
    humaneval = {str(t): on_humaneval(target, draft, t, limit=args.prompts) for t in TEMPERATURES}
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
    }
    (args.pair / "evaluation.json").write_text(json.dumps(found, indent=1))
    (args.pair / "manifest.json").write_text(json.dumps(manifest, indent=1))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
