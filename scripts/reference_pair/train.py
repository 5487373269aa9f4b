"""Train and measure the reference pair that ships with the project.

    python scripts/reference_pair/train.py STEP work=FOLDER [option=value ...]

The steps are prepare, target, polish, draft and export: run.sh has them in order, with the options
of the shipped pair. The classes `Corpus`, `Recipe`, `Polish` and those below describe
the options. Every step reads the previous step's files from the work folder; those that train
resume their own checkpoint.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from corpus import Corpus, prepare
from evaluate import evaluation
from loop import Recipe, Source, train
from merge import merge_layers
from omegaconf import MISSING, OmegaConf
from outputs import function_prompts, light_copy, own_outputs
from polish import Polish, polish
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ouroboros.engine.model import CachedModel


@dataclass
class Step:
    """The options of every step: the folder for files between steps, and the device."""

    work: str = MISSING
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Target(Recipe, Step):
    """The options of training the target: its layer sizes, and the recipe."""

    hidden: int = 384
    ffn: int = 1024
    heads: int = 3
    kv_heads: int = 1
    layers: int = 6


@dataclass
class Polishing(Polish, Step):
    """The options of polishing, the target's last stage."""


@dataclass
class Draft(Recipe, Step):
    """The options of training the draft: its layers (each of `groups` lists target layers to merge
    into one, with `ffn` feed-forward units), and the recipe."""

    groups: list[list[int]] = field(default_factory=lambda: [[0], [1, 2], [4, 5]])
    ffn: int = 1920
    outputs: int = 8000  # prompts whose outputs train the draft
    outputs_share: float = 0.5  # share of windows from them


@dataclass
class Export(Step):
    """The options of exporting: `out` is the folder that the pair is written to, `prompts` the
    number of HumanEval prompts on which it is then measured."""

    out: str = MISSING
    prompts: int = 164


class Work:
    """The folder that the steps share, with the files of `prepare`."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(self.path / "tokenizer")
        self.tokens = np.load(self.path / "train.npy", mmap_mode="r")
        self.heads = function_prompts(json.loads((self.path / "functions.json").read_text()))

    def load(self, name: str) -> LlamaForCausalLM:
        return LlamaForCausalLM.from_pretrained(self.path / name, dtype=torch.float32)

    def save(self, model: LlamaForCausalLM, name: str, summary: dict) -> None:
        """Write the weights in float32, and the summary of their training."""
        model.cpu().float().save_pretrained(self.path / name)
        (self.path / name / "summary.json").write_text(json.dumps(summary, indent=1))
        print(json.dumps(summary))


def train_target(options: Target) -> None:
    """Train the target from scratch and write target/."""
    work = Work(options.work)
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=len(work.tokenizer),
        hidden_size=options.hidden,
        intermediate_size=options.ffn,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=128,  # as in the large shapes, so that stand-ins fit exactly
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.02,
    )
    out, sources = work.path / "target", [Source(work.tokens)]
    model = LlamaForCausalLM(config)
    work.save(model, "target", train(model, sources, out, options, device=options.device))


def polish_target(options: Polishing) -> None:
    """Teach the trained target not to repeat itself, and rewrite target/."""
    work = Work(options.work)
    torch.manual_seed(options.seed)
    model = work.load("target")
    at_documents = [Source(work.tokens, starts=np.flatnonzero(work.tokens == 0))]
    given = (work.tokenizer, work.heads, at_documents, work.path / "polish", options)
    summary = polish(model, *given, device=options.device)
    before = json.loads((work.path / "target" / "summary.json").read_text())
    work.save(model, "target", before | {"polish": summary})


def train_draft(options: Draft) -> None:
    """Merge the target's layers in groups, learn the target's distribution, write draft/.

    A share of the training windows is text that the target wrote (outputs.npy, generated once).
    """
    work = Work(options.work)
    torch.manual_seed(options.seed)
    target = work.load("target").to(options.device).eval().requires_grad_(False)  # type: ignore[arg-type]
    model, outputs = merge_layers(target, options.groups, options.ffn), work.path / "outputs.npy"
    if not outputs.exists():
        writer, given = light_copy(target), (work.tokenizer, work.heads, work.tokens)
        np.save(outputs, own_outputs(writer, *given, options.outputs, seed=options.seed))
    share = options.outputs_share
    sources = [Source(work.tokens, 1 - share), Source(np.load(outputs), share)]
    out = work.path / "draft"
    summary = train(model, sources, out, options, device=options.device, teacher=target)
    work.save(model, "draft", summary)


def export(options: Export) -> None:
    """Write the pair in bf16, shards under 16 MiB, with the tokenizer beside each model; measure
    it, and write evaluation.json and the corpus' manifest.json."""
    work, out, pair = Work(options.work), Path(options.out), []
    for name in ("target", "draft"):
        work.load(name).bfloat16().save_pretrained(out / name, max_shard_size="15MB")
        work.tokenizer.save_pretrained(out / name)
        pair.append(CachedModel.from_pretrained(str(out / name), dtype=torch.float32))
    shutil.copy(work.path / "manifest.json", out)
    held_out = json.loads((work.path / "heldout.json").read_text())
    target, draft = pair
    found = evaluation(target, draft, held_out, options.prompts)
    (out / "evaluation.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found))


STEPS: dict[str, tuple[Callable, type]] = {
    "prepare": (prepare, Corpus),
    "target": (train_target, Target),
    "polish": (polish_target, Polishing),
    "draft": (train_draft, Draft),
    "export": (export, Export),
}


def main(words: Sequence[str]) -> None:
    if not words or words[0] not in STEPS:
        raise SystemExit(f"{__doc__}\nSTEP is one of {', '.join(STEPS)}")
    step, kind = STEPS[words[0]]
    options = OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.from_dotlist(list(words[1:])))
    step(OmegaConf.to_object(options))


if __name__ == "__main__":
    main(sys.argv[1:])
