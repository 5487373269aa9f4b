"""Train the reference pair that ships with the project: tokenizer, corpus, target, draft, export.

    python scripts/reference_pair/train.py prepare --wheels WHEELS --gsm8k gsm8k_train.jsonl \\
        --forbid humaneval mbpp.jsonl gsm8k_test.jsonl --work WORK
    python scripts/reference_pair/train.py target --work WORK --minutes 80
    python scripts/reference_pair/train.py polish --work WORK --minutes 10
    python scripts/reference_pair/train.py draft --work WORK --minutes 20
    python scripts/reference_pair/train.py export --work WORK --out ouroboros/reference
    python scripts/reference_pair/train.py tiny --work WORK --out OUT   # toy size

Every step reads what the one before wrote in WORK and continues its own checkpoint; `STEP --help`
lists its options. `evaluate.py` measures the result and writes the model card.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from loop import Recipe, Source, Trainee, train
from measures import draft_figures, heldout_losses, short_samples
from merge import merge_layers
from outputs import light_copy, own_outputs, prompts_of
from polish import Polish, function_prompts, polish
from prepare import prepare
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BRIEF = "--steps 20 --batch-tokens 512 --length 64 --long-length 128 --no-compile"
TINY = {
    "prepare": "--stdlib-files 60 --vocab 512",
    "target": f"--hidden 128 --ffn 128 --heads 1 --layers 2 {BRIEF}",
    "polish": "--steps 2 --plain-length 64 --no-compile",
    "draft": f"--groups 0,1 --ffn 192 --outputs 8 {BRIEF}",
}
Settings = TypeVar("Settings", Recipe, Polish)


def config_of(args: argparse.Namespace, vocab_size: int) -> LlamaConfig:
    """The target's Llama shape; head_dim 128, so that stand-ins fit exactly."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=args.hidden,
        intermediate_size=args.ffn,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.02,
    )


def settings_of(kind: type[Settings], args: argparse.Namespace) -> Settings:
    """Read what `add_settings` added."""
    return kind(**{field.name: getattr(args, field.name) for field in fields(kind)})


def train_target(args: argparse.Namespace) -> None:
    """Train the target, from scratch or from `--initial` weights, and write `target/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    if args.initial:
        model = LlamaForCausalLM.from_pretrained(args.initial, dtype=torch.float32)
    else:
        model = LlamaForCausalLM(config_of(args, len(tokenizer_of(work))))
    check = partial(heldout_losses, samples=samples_of(work))
    recipe, sources = settings_of(Recipe, args), [Source(stream_of(work))]
    summary = train(model, sources, work / "target", recipe, check=check, device=args.device)
    finish(model, work / "target", summary)


def polish_target(args: argparse.Namespace) -> None:
    """Teach the trained target not to repeat itself, and rewrite `target/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.float32)
    recipe = settings_of(Polish, args)
    summary = polish(
        Trainee(model, Recipe(compile=recipe.compile), None, args.device),
        tokenizer_of(work),
        function_prompts(functions_of(work)),
        [Source.of_documents(stream_of(work))],
        work / "target",
        recipe,
    )
    before = json.loads((work / "target" / "summary.json").read_text())
    for key in ("polish_steps", "polish_minutes"):
        summary[key] += before.get(key, 0)
    finish(model, work / "target", before | summary)
    print(json.dumps(heldout_losses(model, samples_of(work))))


def functions_of(work: Path) -> list[str]:
    return json.loads((work / "functions.json").read_text())


def tokenizer_of(work: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")


def samples_of(work: Path) -> dict[str, list]:
    """A few held-out documents: a check of a few seconds."""
    return short_samples(tokenizer_of(work), json.loads((work / "heldout.json").read_text()))


def stream_of(work: Path) -> np.ndarray:
    """The ids that are trained on, in one row."""
    return np.load(work / "train.npy", mmap_mode="r")


def write_outputs(target: LlamaForCausalLM, args: argparse.Namespace) -> None:
    """Let the target continue prompts of the training corpus, for the draft to learn on."""
    work = Path(args.work)
    heads = function_prompts(functions_of(work))
    rows = prompts_of(tokenizer_of(work), heads, stream_of(work), args.outputs, seed=args.seed)
    np.save(work / "outputs.npy", own_outputs(light_copy(target), rows, seed=args.seed))


def train_draft(args: argparse.Namespace) -> None:
    """Start from the target's layers, merged in groups, learn its law, write `draft/`."""
    work = Path(args.work)
    torch.manual_seed(args.seed)
    target = LlamaForCausalLM.from_pretrained(work / "target", dtype=torch.float32)
    target.to(args.device).eval().requires_grad_(False)
    model = merge_layers(target, args.groups, args.ffn)
    if not (work / "outputs.npy").exists():
        write_outputs(target, args)
    sources = [
        Source(stream_of(work), 1 - args.outputs_share),
        Source(np.load(work / "outputs.npy"), args.outputs_share),
    ]
    check = partial(draft_figures, target=target, samples=samples_of(work))
    summary = train(
        model,
        sources,
        work / "draft",
        settings_of(Recipe, args),
        teacher=target,
        check=check,
        device=args.device,
    )
    finish(model, work / "draft", summary | {"groups": args.groups})


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
    """The whole path at toy size, for the test suite: standard library only, a few steps of
    training, whatever time they take."""
    work = ["--work", args.work]
    lines = [[step, *work, "--device", args.device, *TINY[step].split()] for step in TINY]
    for line in (*lines, ["export", *work, "--out", args.out]):
        own = parser().parse_args(line)
        own.step(own)


def add_settings(step: argparse.ArgumentParser, kind: type[Recipe] | type[Polish]) -> None:
    """Add an option for each field, `--no-...` too for what is on or off; its class explains it."""
    for field in fields(kind):
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            step.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            step.add_argument(flag, type=type(default), default=default)


def add_sources(step: argparse.ArgumentParser) -> None:
    """Add the options of `prepare`."""
    add = step.add_argument
    add("--seed", type=int, default=0)
    add("--wheels", help="folder of wheels to read")
    add("--gsm8k", help="GSM8K train split, JSONL")
    add("--forbid", nargs="*", default=[], help="'humaneval' or JSONL files to keep out")
    add("--also-forbid", nargs="*", default=[], help="the same, without moving the held-out split")
    add("--tokenizer", help="folder of a tokenizer to keep; without it one is trained")
    add("--stdlib-files", type=int, help="read only so many files of the standard library")
    add("--vocab", type=int, default=8192)
    add("--module-characters", type=int, default=45_000_000)
    add("--tokenizer-characters", type=int, default=60_000_000)


def add_shape(step: argparse.ArgumentParser) -> None:
    """Add the options of the target's shape."""
    step.add_argument("--initial", help="folder of weights to start from, instead of a shape")
    shape = {"hidden": 384, "ffn": 1024, "heads": 3, "kv-heads": 1, "layers": 6}
    for name, default in shape.items():
        step.add_argument(f"--{name}", type=int, default=default)


def add_draft(step: argparse.ArgumentParser) -> None:
    """Add what a draft is made of."""
    add = step.add_argument
    told = "the target's layers, those side by side in one of the draft's joined by commas"
    add("--groups", type=groups_of, default=groups_of("0 1,2 4,5"), help=told)
    add("--ffn", type=int, default=1920, help="feed-forward units of a layer")
    add("--outputs", type=int, default=8000, help="prompts whose outputs the draft learns on")
    add("--outputs-share", type=float, default=0.5, help="share of the windows in them")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    steps = top.add_subparsers(required=True)
    recipe, polishing = partial(add_settings, kind=Recipe), partial(add_settings, kind=Polish)
    own: dict[str, tuple[Callable, list[Callable]]] = {
        "prepare": (prepare, [add_sources]),
        "target": (train_target, [add_shape, recipe]),
        "polish": (polish_target, [polishing]),
        "draft": (train_draft, [add_draft, recipe]),
        "export": (export, []),
        "tiny": (tiny, []),
    }
    for name, (step, options) in own.items():
        found = steps.add_parser(name, help=step.__doc__)
        found.set_defaults(step=step)
        found.add_argument("--work", required=True, help="folder for everything between the steps")
        for add in options:
            add(found)
        if step in (export, tiny):
            found.add_argument("--out", required=True, help="folder of the exported pair")
        if step is not export:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            found.add_argument("--device", default=device)
    return top


if __name__ == "__main__":
    arguments = parser().parse_args()
    arguments.step(arguments)
