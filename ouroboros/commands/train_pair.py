"""Train the reference pair that ships with the project: tokenizer, corpus, target, draft, export.

    ouroboros train_pair prepare --wheels WHEELS --gsm8k gsm8k_train.jsonl \\
        --forbid humaneval mbpp.jsonl gsm8k_test.jsonl --work WORK
    ouroboros train_pair target --work WORK --minutes 80
    ouroboros train_pair polish --work WORK --minutes 10
    ouroboros train_pair draft --work WORK --minutes 20
    ouroboros train_pair export --work WORK --out ouroboros/reference
    ouroboros train_pair tiny --work WORK      # all of it, in under a minute

Every step reads what the one before wrote in WORK and continues its own checkpoint.
`ouroboros evaluate_pair` measures the result and writes the model card.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ouroboros.training.loop import Recipe, Source, Trainee, loss_of, train
from ouroboros.training.merge import merge_layers
from ouroboros.training.outputs import light_copy, own_outputs, prompts_of
from ouroboros.training.polish import Polish, function_prompts, polish
from ouroboros.training.preparation import prepare

MODULE_CHARACTERS = 45_000_000
TINY = {
    "stdlib_files": 60,
    "vocab": 512,
    "hidden": 128,
    "ffn": 128,
    "heads": 1,
    "layers": 2,
    "draft_groups": [[0, 1]],
    "draft_ffn": 192,
    "minutes": 0.04,
    "batch_tokens": 512,
    "length": 64,
    "long_length": 128,
    "outputs": 8,
    "no_compile": True,
}


def config_of(args: argparse.Namespace, layers: int) -> LlamaConfig:
    """The Llama shape of either model of the pair; head_dim 128, so that stand-ins fit exactly."""
    return LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.ffn,
        num_hidden_layers=layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.02,
    )


def recipe_of(args: argparse.Namespace) -> Recipe:
    return Recipe(
        minutes=args.minutes,
        batch_tokens=args.batch_tokens,
        length=args.length,
        long_length=args.long_length,
        long_share=args.long_share,
        warmup_share=args.warmup_share,
        decay_share=args.decay_share,
        lr_matrices=args.lr * 0.02,
        lr_rest=args.lr * 3e-3,
        compile=not args.no_compile,
        seed=args.seed,
    )


def train_target(args: argparse.Namespace) -> None:
    """Train the target, from scratch or from `--initial` weights, and write `target/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    if args.initial:
        model = LlamaForCausalLM.from_pretrained(args.initial, dtype=torch.float32)
    else:
        model = LlamaForCausalLM(config_of(args, args.layers))
    sources = [Source(np.load(work / "train.npy", mmap_mode="r"))]
    check = partial(heldout_losses, samples=heldout_samples(work))
    summary = train(
        model, sources, work / "target", recipe_of(args), check=check, device=args.device
    )
    finish(model, work / "target", summary)


def heldout_samples(work: Path, count: int = 24, length: int = 513) -> dict[str, list]:
    """Return the first ids of a few held-out documents of each kind: a check of a few seconds."""
    tokenizer, kinds = tokenizer_of(work), json.loads((work / "heldout.json").read_text())
    return {
        kind: [tokenizer(text).input_ids[:length] for text in texts[:count]]
        for kind, texts in kinds.items()
        if texts
    }


@torch.no_grad()
def heldout_losses(model: LlamaForCausalLM, samples: dict[str, list]) -> dict[str, float]:
    """Mean nats per token of each kind of text."""
    losses = {}
    for kind, rows in samples.items():
        nats = [loss_of(model, torch.tensor([row], device=model.device)).item() for row in rows]
        losses[kind] = float(np.average(nats, weights=[len(row) - 1 for row in rows]))
    return losses


def polish_target(args: argparse.Namespace) -> None:
    """Teach the trained target not to repeat itself, and rewrite `target/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.float32)
    recipe = Polish(
        minutes=args.minutes,
        lr=args.polish_lr,
        weight=args.polish_weight,
        prompts=args.polish_prompts,
        kept=3 * args.polish_prompts // 8,
        plain_length=args.length,
        settle_share=args.settle_share,
        seed=args.seed,
    )
    summary = polish(
        Trainee(model, recipe_of(args), None, args.device),
        tokenizer_of(work),
        function_prompts(functions_of(work)),
        [Source.of_documents(np.load(work / "train.npy", mmap_mode="r"))],
        work / "target",
        recipe,
    )
    before = json.loads((work / "target" / "summary.json").read_text())
    for key in ("polish_steps", "polish_minutes"):
        summary[key] += before.get(key, 0)
    finish(model, work / "target", before | summary)
    print(json.dumps(heldout_losses(model, heldout_samples(work))))


def blend_target(args: argparse.Namespace) -> None:
    """Move the target's weights a share of the way to those of another folder.

    Between the same weights before and after a polish lie some that repeat less and lose little.
    """
    folder = Path(args.work) / "target"
    model, other = (
        LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (folder, args.toward)
    )
    with torch.no_grad():
        for own, wanted in zip(model.parameters(), other.parameters(), strict=True):
            own.lerp_(wanted, args.blend_share)
    summary = json.loads((folder / "summary.json").read_text())
    finish(model, folder, summary | {"blended": [*summary.get("blended", []), args.blend_share]})


def functions_of(work: Path) -> list[str]:
    return json.loads((work / "functions.json").read_text())


def tokenizer_of(work: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")


def write_outputs(args: argparse.Namespace) -> None:
    """Let the target continue prompts of the training corpus, for the draft to learn on."""
    work = Path(args.work)
    tokens = np.load(work / "train.npy", mmap_mode="r")
    target = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.float32)
    target = light_copy(target.to(args.device))
    heads = function_prompts(functions_of(work))
    rows = prompts_of(tokenizer_of(work), heads, tokens, args.outputs, seed=args.seed)
    outputs = own_outputs(target, rows, seed=args.seed)
    np.save(work / "outputs.npy", outputs)
    print(json.dumps({"output_tokens": len(outputs)}))


def train_draft(args: argparse.Namespace) -> None:
    """Start from the target's layers, merged in groups, learn its law, write `draft/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    target = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.float32)
    target.to(args.device).eval().requires_grad_(False)
    model = merge_layers(target, args.draft_groups, args.draft_ffn)
    if not (work / "outputs.npy").exists():
        write_outputs(args)
    sources = [
        Source(np.load(work / "train.npy", mmap_mode="r"), 1 - args.outputs_share),
        Source(np.load(work / "outputs.npy"), args.outputs_share),
    ]
    check = partial(draft_figures, target=target, samples=heldout_samples(work))
    summary = train(
        model,
        sources,
        work / "draft",
        recipe_of(args),
        teacher=target,
        check=check,
        device=args.device,
    )
    finish(model, work / "draft", summary | {"groups": args.draft_groups})


@torch.no_grad()
def draft_figures(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, samples: dict[str, list]
) -> dict[str, dict[str, float]]:
    """Divergence in nats and agreement of the most likely tokens, for each kind of text."""
    figures = {}
    for kind, rows in samples.items():
        sums = np.zeros(3)
        for row in rows:
            ids = torch.tensor([row[:-1]], device=draft.device)
            law, given = (
                m(ids, use_cache=False).logits[0].log_softmax(-1) for m in (target, draft)
            )
            agreed = (law.argmax(-1) == given.argmax(-1)).sum().item()
            sums += [(law.exp() * (law - given)).sum().item(), agreed, len(law)]
        figures[kind] = {"divergence": sums[0] / sums[2], "agreement": sums[1] / sums[2]}
    return figures


def groups_of(text: str) -> list[list[int]]:
    """Read groups of layers.

    >>> groups_of("0 1,2 4,5")
    [[0], [1, 2], [4, 5]]
    """
    return [[int(index) for index in group.split(",")] for group in text.split()]


def finish(model: LlamaForCausalLM, out: Path, summary: dict) -> None:
    """Write weights in float32 beside the summary of their training."""
    model.cpu().float().save_pretrained(out)
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary))


def export(args: argparse.Namespace) -> None:
    """Write the pair in bf16, shards under 16 MiB, with the tokenizer beside each model."""
    tokenizer = tokenizer_of(Path(args.work))
    for name in ("target", "draft"):
        model = LlamaForCausalLM.from_pretrained(Path(args.work) / name, dtype=torch.bfloat16)
        out = Path(args.out) / name
        model.save_pretrained(out, max_shard_size="15MB")
        tokenizer.save_pretrained(out)


def tiny(args: argparse.Namespace) -> None:
    """The whole path at toy size, for the test suite: standard library only, seconds of
    training."""
    for step in (prepare, train_target, polish_target, train_draft, export):
        step(args)


def add_options(step: argparse.ArgumentParser) -> None:
    """Add every option; the steps share them, so that one command line serves them all."""
    add = step.add_argument
    add("--work", required=True, help="folder for everything between the steps")
    add("--seed", type=int, default=0)
    add("--wheels", help="folder of wheels to read")
    add("--gsm8k", help="GSM8K train split, JSONL")
    add("--forbid", nargs="*", default=[], help="'humaneval' or JSONL files to keep out")
    add("--also-forbid", nargs="*", default=[], help="the same, without moving the held-out split")
    add("--tokenizer", help="folder of a tokenizer to keep; without it one is trained")
    add("--initial", help="folder of weights that the target's training starts from")
    add("--stdlib-files", type=int, help="read only so many files of the standard library")
    add("--vocab", type=int, default=8192)
    add("--module-characters", type=int, default=MODULE_CHARACTERS)
    add("--tokenizer-characters", type=int, default=60_000_000)
    add("--hidden", type=int, default=384)
    add("--ffn", type=int, default=1024)
    add("--heads", type=int, default=3)
    add("--kv-heads", type=int, default=1)
    add("--layers", type=int, default=6)
    add(
        "--draft-groups",
        type=groups_of,
        default=groups_of("0 1,2 4,5"),
        help="the target's layers that lie side by side in each of the draft's",
    )
    add("--draft-ffn", type=int, default=1920, help="feed-forward units of a draft's layer")
    add("--minutes", type=float, default=60)
    add("--batch-tokens", type=int, default=8192)
    add("--length", type=int, default=512)
    add("--long-length", type=int, default=4096)
    add("--long-share", type=float, default=0.12, help="share of tokens in long sequences")
    add("--warmup-share", type=float, default=0.02)
    add("--decay-share", type=float, default=0.5)
    add("--lr", type=float, default=1.0, help="factor on the peak learning rates")
    add("--polish-lr", type=float, default=2e-4)
    add(
        "--polish-prompts",
        type=int,
        default=32,
        help="continued for two steps; 3/4 are learned from",
    )
    add("--settle-share", type=float, default=0.25, help="of the polish, without the penalty")
    add("--polish-weight", type=float, default=0.7, help="of the penalty on repeats")
    add("--toward", help="folder of the weights to blend the target with")
    add("--blend-share", type=float, default=0.5, help="how far to go there, 0 to 1")
    add("--outputs", type=int, default=8000, help="prompts whose outputs the draft learns on")
    add("--outputs-share", type=float, default=0.5, help="share of the draft's windows in them")
    add("--no-compile", action="store_true")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--out", help="folder of the exported pair")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    steps = top.add_subparsers(required=True)
    for name, step in {
        "prepare": prepare,
        "target": train_target,
        "polish": polish_target,
        "blend": blend_target,
        "outputs": write_outputs,
        "draft": train_draft,
        "export": export,
        "tiny": tiny,
    }.items():
        own = steps.add_parser(name, help=step.__doc__)
        add_options(own)
        own.set_defaults(step=step, **(TINY if step is tiny else {}))
    return top


def main() -> None:
    arguments = parser().parse_args()
    arguments.step(arguments)
