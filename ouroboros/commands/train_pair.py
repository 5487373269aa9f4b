"""Train the reference pair that ships with the project: tokenizer, corpus, target, draft, export.

    python scripts/train_pair.py prepare --wheels WHEELS --gsm8k gsm8k_train.jsonl \\
        --forbid humaneval mbpp.jsonl gsm8k_test.jsonl --work WORK
    python scripts/train_pair.py target --work WORK --minutes 80
    python scripts/train_pair.py polish --work WORK --minutes 10
    python scripts/train_pair.py draft --work WORK --minutes 20
    python scripts/train_pair.py export --work WORK --out ouroboros/reference
    python scripts/train_pair.py tiny --work WORK      # all of it, in under a minute

Every step reads what the one before wrote in WORK and continues its own checkpoint.
`evaluate_pair.py` measures the result and writes the model card.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ouroboros.training.loop import Recipe, train
from ouroboros.training.polish import function_prompts, own_outputs, polish
from ouroboros.training.preparation import prepare

MODULE_CHARACTERS = 45_000_000
TINY = {
    "stdlib_files": 60,
    "vocab": 512,
    "hidden": 128,
    "ffn": 128,
    "heads": 1,
    "layers": 2,
    "draft_layers": 1,
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
        compile=not args.no_compile,
        seed=args.seed,
    )


def train_target(args: argparse.Namespace) -> None:
    """Train the target from scratch and write `target/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM(config_of(args, args.layers))
    tokens = np.load(work / "train.npy", mmap_mode="r")
    summary = train(model, tokens, work / "target", recipe_of(args), device=args.device)
    finish(model, work / "target", summary)


def polish_target(args: argparse.Namespace) -> None:
    """Teach the trained target not to repeat itself, and rewrite `target/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.float32)
    summary = polish(
        model,
        tokenizer_of(work),
        function_prompts(json.loads((work / "functions.json").read_text())),
        np.load(work / "train.npy", mmap_mode="r"),
        work / "target",
        minutes=args.minutes,
        device=args.device,
        lr=args.polish_lr,
        seed=args.seed,
    )
    before = json.loads((work / "target" / "summary.json").read_text())
    for key in ("polish_steps", "polish_minutes"):
        summary[key] += before.get(key, 0)
    finish(model, work / "target", before | summary)


def tokenizer_of(work: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")


def draft_stream(args: argparse.Namespace) -> np.ndarray:
    """Return what the draft learns on: the corpus, and the target's own outputs made once.

    The outputs are repeated so that they make up about a third of what is drawn.
    """
    work = Path(args.work)
    tokens = np.load(work / "train.npy", mmap_mode="r")
    if not args.outputs:
        return tokens
    kept = work / "outputs.npy"
    if not kept.exists():
        prompts = function_prompts(json.loads((work / "functions.json").read_text()))
        target = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.bfloat16)
        target.to(args.device)
        np.save(kept, own_outputs(target, tokenizer_of(work), prompts[-args.outputs :]))
    outputs = np.load(kept)
    share = np.tile(outputs, max(1, len(tokens) // (2 * len(outputs))))
    return np.concatenate([tokens, share])


def train_draft(args: argparse.Namespace) -> None:
    """Start from the target's embedding and outer layers, learn its law, write `draft/`."""
    work = Path(args.work)
    target = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.float32)
    target.to(args.device).eval()
    model = LlamaForCausalLM(config_of(args, args.draft_layers))
    kept = [round(i) for i in np.linspace(0, args.layers - 1, args.draft_layers)]
    model.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(target.model.norm.state_dict())
    for own, source in enumerate(kept):
        model.model.layers[own].load_state_dict(target.model.layers[source].state_dict())
    tokens = draft_stream(args)
    summary = train(
        model, tokens, work / "draft", recipe_of(args), teacher=target, device=args.device
    )
    finish(model, work / "draft", summary)


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
    add("--stdlib-files", type=int, help="read only so many files of the standard library")
    add("--vocab", type=int, default=8192)
    add("--module-characters", type=int, default=MODULE_CHARACTERS)
    add("--tokenizer-characters", type=int, default=60_000_000)
    add("--hidden", type=int, default=384)
    add("--ffn", type=int, default=1024)
    add("--heads", type=int, default=3)
    add("--kv-heads", type=int, default=1)
    add("--layers", type=int, default=6)
    add("--draft-layers", type=int, default=2)
    add("--minutes", type=float, default=60)
    add("--batch-tokens", type=int, default=8192)
    add("--length", type=int, default=512)
    add("--long-length", type=int, default=4096)
    add("--polish-lr", type=float, default=3e-4)
    add("--outputs", type=int, default=2000, help="prompts whose outputs the draft learns on")
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
        "draft": train_draft,
        "export": export,
        "tiny": tiny,
    }.items():
        own = steps.add_parser(name, help=step.__doc__)
        add_options(own)
        own.set_defaults(step=step, **(TINY if step is tiny else {}))
    return top


def main() -> None:
    """Run one step."""
    arguments = parser().parse_args()
    arguments.step(arguments)
