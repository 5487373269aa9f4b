"""Measure a reference pair and write its model card.

    python scripts/reference_pair/evaluate.py --pair ouroboros/reference --work WORK

Held-out loss by kind of text; agreement of draft and target by temperature, and by position in
held-out documents; repetition of completions of HumanEval prompts, and the temperature at which it
equals that of real models' text; samples and loss curves. `evaluation.json` and `CARD.md` go to the
pair's folder. The last line on stdout is the same as one JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tqdm import tqdm

from ouroboros.bench.metrics.metrics import repetition
from ouroboros.bench.run.config import Sampling, derive_seed
from ouroboros.bench.run.loop import StopStrings, text_of
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.decode import RootOnly, predict, stream
from ouroboros.engine.model import CachedModel
from ouroboros.tree import TokenTree

matplotlib.use("Agg")
TEMPERATURES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
BY_POSITION = (0.0, 0.5, 0.8)
MATCHED = 0.14  # share of repeated 4-grams that greedy text of real code models has
EDGES = (0, 512, 2048, 4096)  # of the ranges of positions, in tokens
MAX_NEW = 128
SHOWN = ("HumanEval/0", "HumanEval/23", "HumanEval/53")
DOCUMENTS = 12  # the longest, so that each range holds text of the same ones
ROWS = 512  # positions whose logits and noise are in memory at once


@torch.inference_mode()
def heldout_loss(model: CachedModel, texts: Sequence[str], limit: int = 1024) -> dict[str, float]:
    """Return the mean nats per token, and per byte, of each text's first `limit` tokens."""
    nats = count = size = 0.0
    for text in texts:
        ids = model.tokenizer(text).input_ids[:limit]
        if len(ids) < 2:
            continue
        logits = model.model(torch.tensor([ids])).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum")
        nats += loss.item()
        count += len(ids) - 1
        size += len(text_of(model.tokenizer, ids[1:]).encode())
    return {"nats_per_token": nats / count, "nats_per_byte": nats / size, "tokens": count}


@torch.inference_mode()
def agreement_by_position(
    target: CachedModel,
    draft: CachedModel,
    texts: Sequence[str],
    temperatures: Sequence[float],
    *,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Return the share of positions of held-out documents at which both models choose the same
    token with the same noise, for each temperature and range of positions."""
    rows = [target.tokenizer(text).input_ids[: EDGES[-1]] for text in texts]
    rows = sorted(rows, key=len)[-DOCUMENTS:]
    agreed = {t: np.zeros(EDGES[-1]) for t in temperatures}
    seen = np.zeros(EDGES[-1])
    for number, row in enumerate(tqdm(rows, desc="by position", mininterval=10)):
        noise = torch.Generator().manual_seed(derive_seed(seed, "by position", number))
        hidden = [m.model.model(torch.tensor([row])).last_hidden_state[0] for m in (target, draft)]
        for at in range(0, len(row), ROWS):
            logits = [
                m.model.lm_head(h[at : at + ROWS]).float()
                for m, h in zip((target, draft), hidden, strict=True)
            ]
            gumbel = -torch.empty_like(logits[0]).exponential_(generator=noise).log()
            for t in temperatures:
                a, b = ((x + t * gumbel).argmax(-1) for x in logits)
                agreed[t][at : at + len(a)] += (a == b).numpy()
            seen[at : at + len(logits[0])] += 1
    ranges = [(low, high) for low, high in itertools.pairwise(EDGES) if seen[low:high].any()]
    return {
        str(t): {
            f"{low}-{high}": float(agreed[t][low:high].sum() / seen[low:high].sum())
            for low, high in ranges
        }
        for t in temperatures
    }


def on_humaneval(
    target: CachedModel,
    draft: CachedModel,
    temperature: float,
    *,
    seed: int = 0,
    limit: int | None = None,
) -> dict:
    """Return agreement, repetition and samples over the first `limit` problems (None: all)."""
    task, agreed, rates, lengths, shown = HumanEval(), [], [], [], {}
    sampling, eos = Sampling(seed=seed, temperature=temperature), target.model.generation_config
    stop = StopStrings(target.tokenizer, task.stop)
    for example in tqdm(list(task.load())[:limit], desc=f"T={temperature}", mininterval=10):
        prompt = target.tokenizer(example.prompt).input_ids
        choose = sampling.choose(example.id, 0, vocab=target.vocab_size)
        target.empty()
        draft.empty()
        steps = stream(
            target, RootOnly(), prompt, max_new=MAX_NEW, eos={eos.eos_token_id}, choose=choose
        )
        for trace in steps:  # until the benchmark's stop string, or to the end
            new = trace.new_tokens
            if (keep := stop(new)) is not None:
                new = new[:keep]
                break
        tree = TokenTree.chain(prompt[-1], new[:-1])
        drafted = predict(draft, draft.new_sequence(), prompt, tree, choose)
        agreed += [a == b for a, b in zip(drafted, new, strict=True)]
        rates.append(repetition(new))
        lengths.append(len(new))
        if example.id in SHOWN:
            shown[example.id] = [example.prompt, text_of(target.tokenizer, new)]
    known = [rate for rate in rates if rate is not None]
    return {
        "prompts": len(rates),
        "agreement": float(np.mean(agreed)),
        "repetition_rate": float(np.mean(known)),
        "above_30_percent": float(np.mean([rate > 0.3 for rate in known])),
        "mean_new_tokens": float(np.mean(lengths)),
        "samples": shown,
    }


def matched_temperature(rates: dict[float, float], wanted: float) -> float | None:
    """Return the temperature, between measured ones, at which text repeats as much as wanted; None
    if no pair of neighbours encloses that rate.

    >>> matched_temperature({0.0: 0.25, 0.5: 0.15, 0.8: 0.05}, 0.14)
    0.53
    """
    for (low, above), (high, below) in itertools.pairwise(sorted(rates.items())):
        if above >= wanted >= below and above > below:
            return round(low + (high - low) * (above - wanted) / (above - below), 2)
    return None


def evaluate(
    pair: dict[str, CachedModel],
    heldout: dict[str, list[str]],
    *,
    seed: int = 0,
    prompts: int | None = None,
) -> dict:
    """Return every figure of a pair as plain data."""
    target, draft = pair["target"], pair["draft"]
    humaneval = {
        str(t): on_humaneval(target, draft, t, seed=seed, limit=prompts) for t in TEMPERATURES
    }
    rates = {float(t): result["repetition_rate"] for t, result in humaneval.items()}
    positions = agreement_by_position(target, draft, heldout["module"], BY_POSITION, seed=seed)
    return {
        "loss": {
            name: {kind: heldout_loss(model, texts) for kind, texts in heldout.items() if texts}
            for name, model in pair.items()
        },
        "humaneval": humaneval,
        "matched_temperature": matched_temperature(rates, MATCHED),
        "by_position": positions,
    }


def curve(work: Path, out: Path) -> None:
    """Draw the loss curves of both trainings (their losses are different things)."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    titles = {"target": "Target: next-token loss", "draft": "Draft: divergence from the target"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        rows = [json.loads(line) for line in (work / name / "curve.jsonl").open()]
        axis.plot([r["tokens"] / 1e6 for r in rows], [r["loss"] for r in rows], lw=1.5)
        axis.set(title=title, xlabel="training tokens (millions)", ylabel="nats per token")
        axis.set_ylim(0, min(6.0, 1.05 * max(r["loss"] for r in rows)))
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)


def card(**facts) -> str:
    """Return the model card in Markdown; its template says which facts it takes."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    template = templates.get_template("card.md.jinja")
    return template.render(**facts, max_new=MAX_NEW, matched=MATCHED)


def model_facts(folder: Path, model: CachedModel) -> dict:
    """Return what the card says of a model's weights."""
    config, network = model.model.config, model.model
    total = sum(p.numel() for p in network.parameters())
    heads = f"{config.num_attention_heads} / {config.num_key_value_heads}"
    return {
        "parameters": total,
        "inner": total - network.get_input_embeddings().weight.numel(),
        "shape": f"{config.num_hidden_layers}, {config.hidden_size}, {heads}",
        "weights_mb": sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6,
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
    heldout = json.loads((args.work / "heldout.json").read_text())
    found = evaluate(pair, heldout, seed=args.seed, prompts=args.prompts)
    (args.pair / "evaluation.json").write_text(json.dumps(found, indent=1))
    manifest = json.loads((args.work / "manifest.json").read_text())
    (args.pair / "manifest.json").write_text(json.dumps(manifest, indent=1))
    curve(args.work, args.pair / "loss_curve.png")
    facts = {"manifest": manifest, "hardware": args.hardware, "history": args.history}
    for name, model in pair.items():
        summary = json.loads((args.work / name / "summary.json").read_text())
        facts[name] = summary | model_facts(args.pair / name, model)
    (args.pair / "CARD.md").write_text(card(**facts, **found))
    for result in found["humaneval"].values():
        del result["samples"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
