"""Measure a reference pair and write its model card.

    python scripts/reference_pair/evaluate.py --pair ouroboros/reference --work WORK

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
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from measures import (
    MAX_NEW,
    agreement_by_position,
    heldout_loss,
    matched_temperature,
    on_humaneval,
)

from ouroboros.engine.model import CachedModel

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
        axis.set_ylim(0, min(6.0, 1.05 * max(r["loss"] for r in rows)))
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)


def card(**facts) -> str:
    """Return the model card in Markdown; see its template for the facts."""
    shelf = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return shelf.get_template("card.md.jinja").render(**facts, max_new=MAX_NEW, matched=MATCHED)


def weights_of(folder: Path, model: CachedModel) -> dict:
    """What the card says of a model's weights."""
    config, network = model.model.config, model.model
    total = sum(p.numel() for p in network.parameters())
    heads = f"{config.num_attention_heads} / {config.num_key_value_heads}"
    return {
        "parameters": total,
        "inner": total - network.get_input_embeddings().weight.numel(),
        "shape": f"{config.num_hidden_layers}, {config.hidden_size}, {heads}",
        "weights_mb": sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6,
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
    write_card(pair, evaluation, args)
    for result in evaluation["humaneval"].values():
        del result["samples"]
    print(json.dumps(evaluation))


def write_card(pair: dict[str, CachedModel], evaluation: dict, args: argparse.Namespace) -> None:
    """Write `CARD.md`, the loss curves and the manifest beside the weights."""
    manifest = json.loads((args.work / "manifest.json").read_text())
    (args.pair / "manifest.json").write_text(json.dumps(manifest, indent=1))
    curve(args.work, args.pair / "loss_curve.png")
    models = {
        name: json.loads((args.work / name / "summary.json").read_text())
        | weights_of(args.pair / name, model)
        for name, model in pair.items()
    }
    told = {"hardware": args.hardware, "history": args.history}
    (args.pair / "CARD.md").write_text(card(manifest=manifest, **told, **models, **evaluation))


if __name__ == "__main__":
    main()
