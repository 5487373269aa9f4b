"""One training loop for the reference pair, on a CPU (bf16 autocast, AMX) and on a GPU alike.

The target learns from next tokens, the draft from the target's distribution (Kullback-Leibler),
which is what makes the two agree. The learning rate follows *training time*: a budget in minutes is
kept on any machine, and a run that resumes from its checkpoint ends where it would have. A budget
in steps is for tests, whose result must not depend on the machine's load.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import attention
import numpy as np
import torch
from losses import divergence_loss, next_token_loss
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedModel

SAVE_EVERY_S, CHECK_EVERY_S = 120, 600
LR_MATRICES, LR_REST = 0.02, 3e-3  # peaks of Muon and of AdamW


@dataclass(frozen=True)
class Recipe:
    """How long and how to train: `minutes` of training, or `steps` if that is not 0.

    Lengths and batches are in tokens. `long_share` of the tokens are in sequences of `long_length`.
    `chunk_tokens` go through the model at once, so that their activations stay in a core's cache.
    `lr` multiplies the peak learning rates.
    """

    minutes: float = 60.0
    steps: int = 0
    batch_tokens: int = 8192
    chunk_tokens: int = 2048
    length: int = 512
    long_length: int = 4096
    long_share: float = 0.12
    warmup_share: float = 0.02
    decay_share: float = 0.5
    lr: float = 1.0
    seed: int = 0
    compile: bool = True


@dataclass(frozen=True)
class Source:
    """A stream of token ids, 1-D, and the share of the training windows drawn from it; `starts`,
    if given, are the places where windows may begin."""

    tokens: np.ndarray
    share: float = 1.0
    starts: np.ndarray | None = None

    def window(self, length: int, rng: np.random.Generator) -> np.ndarray:
        """Return `length` + 1 ids from a random place."""
        last = len(self.tokens) - length
        if self.starts is None:
            at = int(rng.integers(0, last))
        else:
            at = int(self.starts[rng.integers(0, np.searchsorted(self.starts, last))])
        return self.tokens[at : at + length + 1]


def windows(
    sources: Sequence[Source], length: int, count: int, rng: np.random.Generator
) -> torch.Tensor:
    """Return [count, length + 1] ids from random places, sources drawn by their shares."""
    shares = np.array([source.share for source in sources])
    drawn = rng.choice(len(sources), size=count, p=shares / shares.sum())
    rows = [sources[at].window(length, rng) for at in drawn]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


class StepClock:
    """Count seconds of training. A step that takes far longer than others of its kind (it compiled,
    or the process was suspended) counts as `CAP` times the median."""

    CAP = 5.0
    FIRST_S = 5.0  # the most that one of the first steps of a kind counts

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}

    def count(self, kind: int, seconds: float) -> float:
        """Return the seconds that a step of this kind counts."""
        recent = self._recent.setdefault(kind, deque(maxlen=31))
        limit = self.CAP * statistics.median(recent) if len(recent) > 2 else self.FIRST_S
        recent.append(seconds)
        return min(seconds, limit)


def progress(recipe, *, steps: float, seconds: float) -> float:
    """Return the share of the recipe's budget (`minutes`, or `steps` if not 0) that is spent."""
    return steps / recipe.steps if recipe.steps else seconds / (recipe.minutes * 60)


def multiplier(progress: float, recipe: Recipe) -> float:
    """Return the learning-rate factor at `progress` in [0, 1]: up, level, then linearly down."""
    up = min(1.0, progress / max(recipe.warmup_share, 1e-9))
    down = min(1.0, (1.0 - progress) / recipe.decay_share)
    return max(0.0, min(up, down))


def optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices and AdamW for embeddings and norms."""
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in chosen]
    adam = torch.optim.AdamW(
        rest, lr=recipe.lr * LR_REST, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    muon = torch.optim.Muon(
        matrices, lr=recipe.lr * LR_MATRICES, weight_decay=0.01, momentum=0.95, nesterov=True
    )
    return [muon, adam]


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean next-token loss of whole windows, nats per token."""
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    return next_token_loss(hidden.flatten(0, 1), model.lm_head.weight, ids[:, 1:].flatten())


class Trainee:
    """A model, its optimisers and its teacher if it has one: everything that a step changes."""

    def __init__(self, model: LlamaForCausalLM, recipe: Recipe, teacher, device: str) -> None:
        model.to(device)  # type: ignore[arg-type]
        self.model, self.teacher, self.recipe = model.train(), teacher, recipe
        self.device = torch.device(device)
        self.optims = optimizers(model, recipe)
        self.groups = [group for optim in self.optims for group in optim.param_groups]
        self.base_lr = [group["lr"] for group in self.groups]
        self.state = {"seconds": 0.0, "step": 0, "tokens": 0}
        bodies = [m.model for m in (model, teacher) if m is not None]
        if self.device.type == "cpu":
            for body in bodies:
                body.set_attn_implementation(attention.install())
        if recipe.compile:
            bodies = [torch.compile(body, dynamic=False) for body in bodies]
        self.body, self.teacher_body = (*bodies, None)[:2]

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of windows [count, length + 1], nats per token."""
        embedding, compiled = self.model.lm_head.weight, self.recipe.compile
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            hidden = self.body(input_ids=ids[:, :-1], use_cache=False)[0].flatten(0, 1)
            if self.teacher is None:
                return next_token_loss(hidden, embedding, ids[:, 1:].flatten(), compiled=compiled)
            with torch.no_grad():
                wanted = self.teacher_body(input_ids=ids[:, :-1], use_cache=False)[0].flatten(0, 1)
            teacher_embedding = self.teacher.lm_head.weight
            return divergence_loss(hidden, embedding, wanted, teacher_embedding, compiled=compiled)

    def backward(self, ids: torch.Tensor) -> float:
        """Add the gradient of the mean loss of windows [count, length + 1]; return that loss."""
        rows = max(1, self.recipe.chunk_tokens // (ids.shape[1] - 1))
        total = 0.0
        for chunk in ids.split(rows):
            loss = self.loss(chunk.to(self.device)) * (len(chunk) / len(ids))
            loss.backward()
            total += loss.item()
        return total

    def step(self, ids: torch.Tensor, factor: float) -> float:
        """Learn from windows [count, length + 1] at `factor` times the peak rates; return the mean
        loss."""
        for group, lr in zip(self.groups, self.base_lr, strict=True):
            group["lr"] = lr * factor
        loss = self.backward(ids)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optim in self.optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        self.state["step"] += 1
        self.state["tokens"] += ids.numel() - len(ids)
        return loss

    def save(self, path: Path) -> None:
        """Write model, optimisers and state to one file, atomically."""
        content = {
            "model": self.model.state_dict(),
            "optims": [optim.state_dict() for optim in self.optims],
            "state": self.state,
        }
        partial = path.with_suffix(".partial")
        torch.save(content, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        """Resume from what `save` wrote."""
        saved = torch.load(path, map_location=self.device)
        self.model.load_state_dict(saved["model"])
        for optim, content in zip(self.optims, saved["optims"], strict=True):
            optim.load_state_dict(content)
        self.groups = [group for optim in self.optims for group in optim.param_groups]
        self.state = saved["state"]


def train(
    model: LlamaForCausalLM,
    sources: Sequence[Source],
    out: Path,
    recipe: Recipe,
    *,
    check: Callable[[LlamaForCausalLM], dict],
    device: str,
    teacher: PreTrainedModel | None = None,
) -> dict:
    """Train in place; write checkpoint.pt, curve.jsonl, heldout.jsonl to `out`; return a summary.

    A checkpoint in `out` is resumed. The result of `check` is logged every ten minutes of training.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    trainee = Trainee(model, recipe, teacher, device)
    if (out / "checkpoint.pt").exists():
        trainee.load(out / "checkpoint.pt")
    state, clock = trainee.state, StepClock()
    rng = np.random.default_rng([recipe.seed, int(state["step"])])
    average, bar = None, tqdm(total=100, unit="%", mininterval=10)

    def log(name: str, row: dict) -> None:
        with (out / name).open("a") as file:
            file.write(json.dumps({**state, **row}) + "\n")

    def checked() -> None:
        log("heldout.jsonl", check(model.eval()))
        model.train()

    while (done := progress(recipe, steps=state["step"], seconds=state["seconds"])) < 1:
        started = time.monotonic()
        length = recipe.long_length if rng.random() < recipe.long_share else recipe.length
        ids = windows(sources, length, max(1, recipe.batch_tokens // length), rng)
        loss = trainee.step(ids, multiplier(done, recipe))
        average = loss if average is None else 0.98 * average + 0.02 * loss
        state["seconds"] += clock.count(length, time.monotonic() - started)
        bar.n = round(100 * done)
        bar.set_postfix_str(f"loss {average:.3f} {state['tokens'] / 1e6:.2f}M tokens")
        if state["step"] % 20 == 0:
            log("curve.jsonl", {"loss": average})
        if state["seconds"] >= state.get("saved_s", 0.0) + SAVE_EVERY_S:
            state["saved_s"] = state["seconds"]
            trainee.save(out / "checkpoint.pt")
        if state["step"] == 1 or state["seconds"] >= state.get("checked_s", 0.0) + CHECK_EVERY_S:
            state["checked_s"] = state["seconds"]
            checked()
    bar.close()
    trainee.save(out / "checkpoint.pt")
    checked()
    return {**state, "loss": average, **asdict(recipe)}
