"""Measure a reference pair and write its model card.

    ouroboros evaluate_pair --pair ouroboros/reference --work WORK

Held-out loss by kind of text; agreement of draft and target by temperature, and by position on
held-out documents; repetition of completions of HumanEval prompts, and the temperature at which it
is that of real models' text; samples and loss curves. `evaluation.json` and `CARD.md` go to the
pair's folder. The last line on stdout is the same as one JSON document.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
import torch

from ouroboros.engine.model import CachedModel
from ouroboros.training.figures import (
    MAX_NEW,
    agreement_by_position,
    heldout_loss,
    matched_temperature,
    on_humaneval,
)

matplotlib.use("Agg")
TEMPERATURES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
BY_POSITION = (0.0, 0.5, 0.8)
MATCHED = 0.14  # share of repeated 4-grams that greedy text of real code models has


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
    ranges = list(evaluation["by_position"]["0.0"])
    by_position = [
        f"| {t} | " + " | ".join(f"{shares[r]:.3f}" for r in ranges) + " |"
        for t, shares in evaluation["by_position"].items()
    ]
    matched = evaluation["matched_temperature"]
    prompts = evaluation["humaneval"]["0.0"]["prompts"]
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
Muon for the matrices, AdamW for the rest, learning rate down linearly towards the end, a share of
the tokens in sequences of 4096. {facts["history"]} The target then had a last stage of
sequence-level unlikelihood (Welleck et al. 2020) on prompts of the training corpus,
{target["polish_steps"]} steps in {target["polish_minutes"]:g} minutes, against loops in greedy
text. The draft starts from the target's layers, neighbouring ones side by side in one wide layer
({facts["groups"]}), and learns the target's full distribution (forward Kullback-Leibler divergence)
on the corpus and on the target's own outputs, at temperatures 0 and 0.8, for prompts of the corpus,
never of a benchmark.

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

## On HumanEval prompts ({prompts}, up to {MAX_NEW} tokens, stop strings on, float32)

| temperature | agreement, top 1 | repetition rate | completions above 30 % | tokens |
|---|---|---|---|---|
{newline.join(humaneval)}

The text repeats {100 * MATCHED:.0f} %, as greedy text of real code models does, at temperature
{matched}.

*Agreement*: share of the target's tokens that the draft chooses after the same tokens (at T > 0
with the same noise). *Repetition rate*: share of a completion's 4-grams that occurred before in it.

## Agreement by position

On the longest held-out modules, each position given the document before it.

| temperature | {" | ".join(f"tokens {r}" for r in ranges)} |
|---|{"---|" * len(ranges)}
{newline.join(by_position)}

## Samples

{newline.join(samples)}
## Limits

The pair writes plausible short functions, rarely right ones. Its agreement is that of a distilled
pair on easy text. Where greedy text still loops (the table says how often), read speeds on it
beside the repetition rate, or sample. Speedups measured on it are properties of this pair and this
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


def evaluate(pair: dict[str, CachedModel], heldout: dict[str, list[str]], args) -> dict:
    """Return every figure of a pair as plain data."""
    target, draft = pair["target"], pair["draft"]
    humaneval = {
        str(t): on_humaneval(target, draft, t, seed=args.seed, limit=args.prompts)
        for t in TEMPERATURES
    }
    rates = {float(t): result["repetition_rate"] for t, result in humaneval.items()}
    return {
        "loss": {
            name: {kind: heldout_loss(model, texts) for kind, texts in heldout.items() if texts}
            for name, model in pair.items()
        },
        "humaneval": humaneval,
        "matched_temperature": matched_temperature(rates, MATCHED),
        "by_position": agreement_by_position(
            target, draft, heldout["module"], BY_POSITION, seed=args.seed
        ),
    }


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--pair", type=Path, required=True)
    add("--work", type=Path, required=True, help="folder of the training run")
    add("--hardware", default="2 CPU cores with AMX, shared with other work")
    add("--history", default="", help="a sentence on trainings before this one, for the card")
    add("--prompts", type=int, help="only so many HumanEval prompts")
    add("--figures-only", action="store_true", help="write evaluation.json and no card")
    add("--seed", type=int, default=0)
    return parser


def main() -> None:
    args = options().parse_args()
    pair = {
        name: CachedModel.from_pretrained(str(args.pair / name), dtype=torch.float32)
        for name in ("target", "draft")
    }
    heldout = json.loads((args.work / "heldout.json").read_text())
    evaluation = evaluate(pair, heldout, args)
    (args.pair / "evaluation.json").write_text(json.dumps(evaluation, indent=1))
    if not args.figures_only:
        write_card(pair, evaluation, args)
    for result in evaluation["humaneval"].values():
        del result["samples"]
    print(json.dumps(evaluation))


def write_card(pair: dict[str, CachedModel], evaluation: dict, args: argparse.Namespace) -> None:
    """Write `CARD.md`, the loss curves and the manifest beside the weights."""
    manifest = json.loads((args.work / "manifest.json").read_text())
    (args.pair / "manifest.json").write_text(json.dumps(manifest, indent=1))
    curve(args.work, args.pair / "loss_curve.png")
    summaries = {
        name: facts_of(model, json.loads((args.work / name / "summary.json").read_text()))
        for name, model in pair.items()
    }
    facts = {
        "manifest": manifest,
        "evaluation": evaluation,
        "hardware": args.hardware,
        "history": args.history,
        "groups": ", ".join(map(str, summaries["draft"].get("groups", []))),
        **summaries,
    }
    (args.pair / "CARD.md").write_text(card(args.pair, facts))
