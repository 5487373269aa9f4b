"""Measure a reference pair and write its model card.

    python scripts/evaluate_pair.py --pair ouroboros/reference --work WORK

Held-out loss by kind of text, agreement of draft and target and repetition of completions on
HumanEval prompts at temperatures 0 and 0.8, samples, and the loss curve. `evaluation.json` and
`CARD.md` go to the pair's folder. The last line on stdout is the same as one JSON document.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import torch
from tqdm import tqdm

from ouroboros.bench.measure.metrics import repetition_rate
from ouroboros.bench.run.sampling import Sampling
from ouroboros.bench.run.stop import StopStrings, text_of
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.choose import Choose
from ouroboros.decode import RootOnly, predict, stream
from ouroboros.engine.model import CachedModel
from ouroboros.tree import TokenTree

matplotlib.use("Agg")
TEMPERATURES = (0.0, 0.8)
MAX_NEW = 128
SHOWN = ("HumanEval/0", "HumanEval/23", "HumanEval/53")


@torch.inference_mode()
def heldout_loss(model: CachedModel, texts: list[str], limit: int = 1024) -> dict[str, float]:
    """Mean nats per token, and per byte, of each text's first `limit` tokens."""
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


def complete(
    target: CachedModel, prompt: list[int], stop: StopStrings, choose: Choose
) -> list[int]:
    """Return the target's own completion, ended as the benchmark ends it."""
    eos = {target.model.generation_config.eos_token_id}
    for trace in stream(target, RootOnly(), prompt, max_new=MAX_NEW, eos=eos, choose=choose):
        keep = stop(trace.new_tokens)
        if keep is not None:
            return trace.new_tokens[:keep]
    return trace.new_tokens


def agreement(draft: CachedModel, prompt: list[int], new: list[int], choose: Choose) -> list[bool]:
    """Say, for each new token, whether the draft would have chosen it after the same tokens."""
    chosen = predict(draft, prompt, TokenTree.chain(prompt[-1], new[:-1]), choose)
    return [a == b for a, b in zip(chosen, new, strict=True)]


def on_humaneval(target: CachedModel, draft: CachedModel, temperature: float, seed: int) -> dict:
    """Agreement, repetition and samples over all problems at one temperature."""
    task, agreed, rates, lengths, shown = HumanEval(), [], [], [], {}
    sampling = Sampling(seed=seed, temperature=temperature)
    for example in tqdm(task.load(), desc=f"T={temperature}"):
        prompt = target.tokenizer(example.prompt).input_ids
        choose = sampling.choose(example.id, 0, vocab=target.vocab_size)
        target.tokens, draft.tokens = [], []
        stop = StopStrings(target.tokenizer, task.stop)
        new = complete(target, prompt, stop, choose)
        agreed += agreement(draft, prompt, new, choose)
        rates.append(repetition_rate(new))
        lengths.append(len(new))
        if example.id in SHOWN:
            shown[example.id] = [example.prompt, text_of(target.tokenizer, new)]
    known = [rate for rate in rates if rate is not None]
    return {
        "agreement": float(np.mean(agreed)),
        "repetition_rate": float(np.mean(known)),
        "above_30_percent": float(np.mean([rate > 0.3 for rate in known])),
        "mean_new_tokens": float(np.mean(lengths)),
        "samples": shown,
    }


def curve(work: Path, out: Path) -> None:
    """Draw the loss curves of both trainings side by side (their losses are different things)."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    titles = {"target": "Target: next-token loss", "draft": "Draft: divergence from the target"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        rows = [json.loads(line) for line in (work / name / "curve.jsonl").open()]
        axis.plot([r["tokens"] / 1e6 for r in rows], [r["loss"] for r in rows], lw=1.5)
        axis.set(title=title, xlabel="training tokens (millions)", ylabel="nats per token")
        axis.set_ylim(0, min(6.0, max(r["loss"] for r in rows)))
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)


def weights_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6


def card(pair: Path, facts: dict) -> str:
    """Return the model card in Markdown."""
    manifest, evaluation = facts["manifest"], facts["evaluation"]
    target, draft = facts["target"], facts["draft"]
    counts, chars = manifest["counts"], manifest["characters"]
    rows = [
        f"| {kind} | {counts[kind]:,} | {chars[kind] / 1e6:.1f} | "
        f"{evaluation['loss']['target'][kind]['nats_per_token']:.3f} | "
        f"{evaluation['loss']['draft'][kind]['nats_per_token']:.3f} |"
        for kind in chars
    ]
    humaneval = [
        f"| {t} | {r['agreement']:.3f} | {100 * r['repetition_rate']:.1f} % | "
        f"{100 * r['above_30_percent']:.0f} % | {r['mean_new_tokens']:.0f} |"
        for t, r in evaluation["humaneval"].items()
    ]
    samples = [
        f"#### {name}, T = {t}\n\n```python\n{prompt}{text}\n```\n"
        for t, r in evaluation["humaneval"].items()
        for name, (prompt, text) in r["samples"].items()
    ]
    licences = ", ".join(f"{p['name']} {p['version']}" for p in manifest["packages"])
    newline = "\n"
    return f"""# The reference pair

Two small Llama models with one tokenizer, trained from scratch for this project so that its
benchmark runs with no download. They are made to be *measured on*; they know little.

| | target | draft |
|---|---|---|
| parameters | {target["parameters"]:,} | {draft["parameters"]:,} |
| of these without the embedding | {target["inner"]:,} | {draft["inner"]:,} |
| layers, hidden, heads / kv heads of 128 | {target["shape"]} | {draft["shape"]} |
| weights, bf16 | {weights_mb(pair / "target"):.1f} MB | {weights_mb(pair / "draft"):.1f} MB |
| training tokens | {target["tokens"] / 1e6:.1f} M | {draft["tokens"] / 1e6:.1f} M |
| training time | {target["seconds"] / 60:.0f} min | {draft["seconds"] / 60:.0f} min |
| learned from | next tokens | the target's distribution |

Hardware: {facts["hardware"]}. Context 4096; byte-level BPE of 8192 tokens, id 0 ends a text.
Muon for the matrices, AdamW for the rest, learning rate down linearly over the last half, the last
eighth of the time on sequences of 4096. The target then had a last stage of sequence-level
unlikelihood (Welleck et al. 2020) on prompts of the training corpus, {target["polish_steps"]} steps
in {target["polish_minutes"]:g} minutes, against loops in greedy text. The draft starts from the
target's embedding and outer layers and learns the target's distribution (Kullback-Leibler loss) on
the corpus and on the target's own outputs for prompts of the corpus, never of a benchmark.

![loss curves](loss_curve.png)

## Data

| kind | documents | million characters | held-out loss, target | draft |
|---|---|---|---|---|
{newline.join(rows)}

Loss in nats per token on 64 documents of each kind that training never saw. `function` are single
documented functions, `module` whole files (a part of them was used), `prose` packages' readmes and
text files, `math` GSM8K *train* (MIT) in the form of worked examples. The training stream has
{counts["train_tokens"] / 1e6:.1f} M tokens. {manifest["duplicates"]:,} duplicates were dropped, and
{manifest["overlapping"]:,} documents that share 13 consecutive words with HumanEval, MBPP or
GSM8K's test split. Nothing was trained or tuned on a benchmark's test set.

## On HumanEval prompts (all 164, up to {MAX_NEW} tokens, stop strings on, float32)

| temperature | agreement, top 1 | repetition rate | completions above 30 % | tokens |
|---|---|---|---|---|
{newline.join(humaneval)}

*Agreement*: share of the target's tokens that the draft chooses after the same tokens (at T > 0
with the same noise). *Repetition rate*: share of a completion's 4-grams that occurred before in it.

## Samples

{newline.join(samples)}
## Limits

The pair writes plausible short functions, rarely right ones. Its agreement is that of a distilled
pair on easy text. Greedy text still loops in many completions (the table says how many): read
speeds on it beside the repetition rate, or sample. The draft saw few sequences longer than 512
tokens and agrees less beyond that. Speedups measured on it are properties of this pair and this
text, not of a large model.

## Packages read

Permissive licences only (`manifest.json` names each): {licences}.
Left out for their licence: {", ".join(p["name"] for p in manifest["skipped"])}.
"""


def facts_of(model: CachedModel, summary: dict) -> dict:
    config, network = model.model.config, model.model
    total = sum(p.numel() for p in network.parameters())
    heads = f"{config.num_attention_heads} / {config.num_key_value_heads}"
    return {
        **summary,
        "parameters": total,
        "inner": total - network.get_input_embeddings().weight.numel(),
        "shape": f"{config.num_hidden_layers}, {config.hidden_size}, {heads}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--hardware", default="2 CPU cores with AMX, shared with other work")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pair = {
        name: CachedModel.from_pretrained(str(args.pair / name), dtype=torch.float32)
        for name in ("target", "draft")
    }
    heldout = json.loads((args.work / "heldout.json").read_text())
    evaluation = {
        "loss": {
            name: {kind: heldout_loss(model, texts) for kind, texts in heldout.items() if texts}
            for name, model in pair.items()
        },
        "humaneval": {
            str(t): on_humaneval(pair["target"], pair["draft"], t, args.seed) for t in TEMPERATURES
        },
    }
    (args.pair / "evaluation.json").write_text(json.dumps(evaluation, indent=1))
    manifest = json.loads((args.work / "manifest.json").read_text())
    (args.pair / "manifest.json").write_text(json.dumps(manifest, indent=1))
    curve(args.work, args.pair / "loss_curve.png")
    summaries = {
        name: facts_of(model, json.loads((args.work / name / "summary.json").read_text()))
        for name, model in pair.items()
    }
    facts = {"manifest": manifest, "evaluation": evaluation, "hardware": args.hardware, **summaries}
    (args.pair / "CARD.md").write_text(card(args.pair, facts))
    for result in evaluation["humaneval"].values():
        del result["samples"]
    print(json.dumps(evaluation))
