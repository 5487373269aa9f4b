"""Train the reference pair that ships with the project: corpus, target, polish, draft, export.

    python scripts/reference_pair/train.py STEP --work WORK [options]

run.sh has the steps in order, with the options of the shipped pair. Every step reads what the one
before wrote to WORK and resumes its own checkpoint; `STEP --help` lists its options. `tiny` does
all of it at toy size, from the standard library, in some seconds. evaluate.py measures the result
and writes the model card.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from corpus import prepare
from loop import Recipe, Source, Trainee, loss_of, train
from merge import merge_layers
from outputs import function_prompts, light_copy, own_outputs
from polish import Polish, polish
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BRIEF = "--steps 20 --batch-tokens 512 --length 64 --long-length 128 --no-compile"
TINY = {
    "prepare": "--stdlib-files 60 --vocab 512",
    "target": f"--hidden 128 --ffn 128 --heads 1 --layers 2 {BRIEF}",
    "polish": "--steps 2 --plain-length 64 --no-compile",
    "draft": f"--groups 0,1 --ffn 192 --outputs 8 {BRIEF}",
    "export": "",
}


class Work:
    """The folder that the steps share, with what `prepare` wrote there."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(self.path / "tokenizer")
        self.tokens = np.load(self.path / "train.npy", mmap_mode="r")
        self.functions = json.loads((self.path / "functions.json").read_text())

    def samples(self) -> dict[str, list]:
        """Return the first ids of a few held-out documents of each kind: a check of seconds."""
        kinds = json.loads((self.path / "heldout.json").read_text())
        return {
            kind: [self.tokenizer(text).input_ids[:513] for text in texts[:24]]
            for kind, texts in kinds.items()
            if texts
        }

    def load(self, name: str) -> LlamaForCausalLM:
        return LlamaForCausalLM.from_pretrained(self.path / name, dtype=torch.float32)

    def save(self, model: LlamaForCausalLM, name: str, summary: dict) -> None:
        """Write weights in float32 beside the summary of their training."""
        model.cpu().float().save_pretrained(self.path / name)
        (self.path / name / "summary.json").write_text(json.dumps(summary, indent=1))
        print(json.dumps(summary))


@torch.no_grad()
def heldout_losses(model: LlamaForCausalLM, samples: dict[str, list]) -> dict[str, float]:
    """Return the mean nats per token of each kind of text."""
    losses = {}
    for kind, rows in samples.items():
        nats = [loss_of(model, torch.tensor([row], device=model.device)).item() for row in rows]
        losses[kind] = float(np.average(nats, weights=[len(row) - 1 for row in rows]))
    return losses


@torch.no_grad()
def draft_figures(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, samples: dict[str, list]
) -> dict[str, dict[str, float]]:
    """Return divergence in nats and agreement of the most likely tokens, for each kind of text."""
    figures = {}
    for kind, rows in samples.items():
        sums = np.zeros(3)
        for row in rows:
            ids = torch.tensor([row[:-1]], device=draft.device)
            target_log, draft_log = (
                model(ids, use_cache=False).logits[0].log_softmax(-1) for model in (target, draft)
            )
            agreed = (target_log.argmax(-1) == draft_log.argmax(-1)).sum().item()
            divergence = (target_log.exp() * (target_log - draft_log)).sum().item()
            sums += [divergence, agreed, len(target_log)]
        figures[kind] = {"divergence": sums[0] / sums[2], "agreement": sums[1] / sums[2]}
    return figures


def settings_of(kind, args: argparse.Namespace):
    """Return a `Recipe` or `Polish` from the command line."""
    return kind(**{field.name: getattr(args, field.name) for field in fields(kind)})


def train_target(args: argparse.Namespace) -> None:
    """Train the target, from scratch or from `--initial` weights, and write target/."""
    work = Work(args.work)
    torch.manual_seed(args.seed)
    if args.initial:
        model = LlamaForCausalLM.from_pretrained(args.initial, dtype=torch.float32)
    else:
        config = LlamaConfig(
            vocab_size=len(work.tokenizer),
            hidden_size=args.hidden,
            intermediate_size=args.ffn,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            num_key_value_heads=args.kv_heads,
            head_dim=128,  # that of the large shapes, so that stand-ins fit exactly
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            initializer_range=0.02,
        )
        model = LlamaForCausalLM(config)
    check = partial(heldout_losses, samples=work.samples())
    recipe, sources = settings_of(Recipe, args), [Source(work.tokens)]
    summary = train(model, sources, work.path / "target", recipe, check=check, device=args.device)
    work.save(model, "target", summary)


def polish_target(args: argparse.Namespace) -> None:
    """Teach the trained target not to repeat itself, and rewrite target/."""
    work = Work(args.work)
    torch.manual_seed(args.seed)
    model, recipe = work.load("target"), settings_of(Polish, args)
    at_documents = Source(work.tokens, starts=np.flatnonzero(work.tokens == 0))
    summary = polish(
        Trainee(model, Recipe(compile=recipe.compile), None, args.device),
        work.tokenizer,
        function_prompts(work.functions),
        [at_documents],
        work.path / "target",
        recipe,
    )
    before = json.loads((work.path / "target" / "summary.json").read_text())
    for key in ("polish_steps", "polish_minutes"):
        summary[key] += before.get(key, 0)
    work.save(model, "target", before | summary)
    print(json.dumps(heldout_losses(model, work.samples())))


def train_draft(args: argparse.Namespace) -> None:
    """Merge the target's layers in groups, learn the target's distribution, write draft/.

    Half of the training windows are text that the target wrote (outputs.npy, made once).
    """
    work = Work(args.work)
    torch.manual_seed(args.seed)
    target = work.load("target").to(args.device).eval().requires_grad_(False)
    model, outputs = merge_layers(target, args.groups, args.ffn), work.path / "outputs.npy"
    if not outputs.exists():
        heads, seed = function_prompts(work.functions), args.seed
        writer = light_copy(target)
        np.save(
            outputs,
            own_outputs(writer, work.tokenizer, heads, work.tokens, args.outputs, seed=seed),
        )
    sources = [
        Source(work.tokens, 1 - args.outputs_share),
        Source(np.load(outputs), args.outputs_share),
    ]
    check = partial(draft_figures, target=target, samples=work.samples())
    recipe, out = settings_of(Recipe, args), work.path / "draft"
    summary = train(model, sources, out, recipe, teacher=target, check=check, device=args.device)
    work.save(model, "draft", summary | {"groups": args.groups})


def export(args: argparse.Namespace) -> None:
    """Write the pair in bf16, shards under 16 MiB, with the tokenizer beside each model."""
    work = Work(args.work)
    for name in ("target", "draft"):
        out = Path(args.out) / name
        work.load(name).bfloat16().save_pretrained(out, max_shard_size="15MB")
        work.tokenizer.save_pretrained(out)


def tiny(args: argparse.Namespace) -> None:
    """Take every step at toy size, for the tests."""
    for step, options in TINY.items():
        line = [step, "--work", args.work, "--out", args.out, "--device", args.device]
        own = parser().parse_args([*line, *options.split()])
        own.step(own)


def groups_of(text: str) -> list[list[int]]:
    """Read groups of layers.

    >>> groups_of("0 1,2 4,5")
    [[0], [1, 2], [4, 5]]
    """
    return [[int(index) for index in group.split(",")] for group in text.split()]


def parser() -> argparse.ArgumentParser:
    """Each step's options; those of `Recipe` and `Polish` are described by their classes."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = top.add_subparsers(required=True)

    def step(name: str, work, settings=None):
        found = steps.add_parser(name, help=work.__doc__.splitlines()[0])
        found.set_defaults(step=work)
        found.add_argument("--work", required=True, help="folder for everything between the steps")
        found.add_argument("--out", help="folder of the exported pair")
        found.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        for field in fields(settings) if settings else ():
            flag, default = f"--{field.name.replace('_', '-')}", field.default
            if isinstance(default, bool):
                found.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
            else:
                found.add_argument(flag, type=type(default), default=default)
        return found.add_argument

    add = step("prepare", prepare)
    add("--seed", type=int, default=0)
    add("--wheels", help="folder of wheels to read")
    add("--gsm8k", help="GSM8K train split, JSONL")
    add("--forbid", nargs="*", default=[], help="'humaneval' or JSONL files to keep out")
    add("--also-forbid", nargs="*", default=[], help="the same, without moving the held-out split")
    add("--tokenizer", help="folder of a tokenizer to keep; without it one is trained")
    add("--stdlib-files", type=int, help="number of files of the standard library to read")
    add("--vocab", type=int, default=8192)
    add("--module-characters", type=int, default=45_000_000)
    add("--tokenizer-characters", type=int, default=60_000_000)
    add = step("target", train_target, Recipe)
    add("--initial", help="folder of weights to start from, instead of a shape")
    shape = {"hidden": 384, "ffn": 1024, "heads": 3, "kv-heads": 1, "layers": 6}
    for name, default in shape.items():
        add(f"--{name}", type=int, default=default)
    step("polish", polish_target, Polish)
    add = step("draft", train_draft, Recipe)
    groups = "the target's layers; commas join those that are merged into one"
    add("--groups", type=groups_of, default=groups_of("0 1,2 4,5"), help=groups)
    add("--ffn", type=int, default=1920, help="feed-forward units of a layer")
    add("--outputs", type=int, default=8000, help="prompts whose outputs the draft learns on")
    add("--outputs-share", type=float, default=0.5, help="share of the windows in them")
    step("export", export)
    step("tiny", tiny)
    return top


if __name__ == "__main__":
    arguments = parser().parse_args()
    arguments.step(arguments)
