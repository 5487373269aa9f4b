"""One training loop for the reference pair, on a CPU (bf16 autocast, AMX) and on a GPU alike.

The target learns to predict next tokens, the draft to predict the target's distribution (KL
divergence). The learning rate is a function of *training time*: training takes its budget of
minutes on any machine, and resuming from a checkpoint does not change the schedule. Tests use a
budget of steps, so that their result does not depend on the machine's load.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import LlamaForCausalLM

ROWS = 256  # positions per batch of logits on a CPU: they fit a core's cache
CHUNK_TOKENS = 2048  # per forward, so that activations stay in a core's cache
LONGEST_STEP_S = 20.0  # most of a step's seconds that count (it may compile or be suspended)
SAVE_EVERY_S = 120
LR_MATRICES, LR_REST = 0.02, 3e-3  # peak learning rates of Muon and of AdamW


@dataclass
class Recipe:
    """The training recipe: `minutes` of training, or `steps` if that is not 0.

    Lengths and batches are in tokens; `long_share` of the batches have sequences of `long_length`.
    The learning rate rises linearly in the first `warmup_share` of the training, and falls linearly
    to 0 in the last `decay_share`.
    """

    minutes: float = 60.0
    steps: int = 0
    batch_tokens: int = 8192
    length: int = 512
    long_length: int = 4096
    long_share: float = 0.12
    warmup_share: float = 0.02
    decay_share: float = 0.5
    seed: int = 0
    compile: bool = True


@dataclass(frozen=True)
class Source:
    """A 1-D stream of token ids, the share of training windows taken from it, and the positions
    at which windows may begin (None: all)."""

    tokens: np.ndarray
    share: float = 1.0
    starts: np.ndarray | None = None


def windows(
    sources: Sequence[Source], length: int, count: int, rng: np.random.Generator
) -> torch.Tensor:
    """Return [count, length + 1] ids: windows at random positions of sources drawn by share."""
    shares, rows = np.array([source.share for source in sources]), []
    for drawn in rng.choice(len(sources), size=count, p=shares / shares.sum()):
        tokens, starts = sources[drawn].tokens, sources[drawn].starts
        last = len(tokens) - length
        at = rng.integers(0, last) if starts is None else rng.choice(starts[starts < last])
        rows.append(tokens[at : at + length + 1])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def progress(recipe: Recipe, *, steps: float, seconds: float) -> float:
    """Return the share of the recipe's budget (`minutes`, or `steps` if not 0) used so far."""
    return steps / recipe.steps if recipe.steps else seconds / (recipe.minutes * 60)


def multiplier(progress: float, recipe: Recipe) -> float:
    """Return the learning-rate factor at `progress` in [0, 1]: warm-up, constant, linear decay."""
    up = min(1.0, progress / max(recipe.warmup_share, 1e-9))
    down = min(1.0, (1.0 - progress) / recipe.decay_share)
    return max(0.0, min(up, down))


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Return [Muon for the hidden matrices, AdamW for embeddings and norms]."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    muon = torch.optim.Muon(matrices, lr=LR_MATRICES, weight_decay=0.01, momentum=0.95)
    adam = torch.optim.AdamW(rest, lr=LR_REST, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [muon, adam]


def mean_loss(
    model: LlamaForCausalLM, ids: torch.Tensor, teacher: LlamaForCausalLM | None = None
) -> torch.Tensor:
    """Return the mean loss of windows [count, length + 1] in nats per token: next-token loss, or
    divergence from a teacher's distribution. Logits are not kept for the backward pass."""

    def hidden(model: LlamaForCausalLM) -> torch.Tensor:
        if model.device.type == "cpu":  # eager attention is faster there for short windows
            model.model.set_attn_implementation("eager" if ids.shape[1] <= 1025 else "sdpa")
        return model.model(input_ids=ids[:, :-1], use_cache=False)[0].flatten(0, 1)

    def loss(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = model.lm_head(rows).float()
        if teacher is None:
            return F.cross_entropy(logits, wanted, reduction="sum")
        theirs = teacher.lm_head(wanted).float().log_softmax(-1)
        return F.kl_div(logits.log_softmax(-1), theirs, reduction="sum", log_target=True)

    if teacher is None:
        targets = ids[:, 1:].flatten()
    else:
        with torch.no_grad():
            targets = hidden(teacher)
    rows = hidden(model)
    size = ROWS if model.device.type == "cpu" else len(rows)
    parts = zip(rows.split(size), targets.split(size), strict=True)
    losses = [checkpoint(loss, *part, use_reentrant=False) for part in parts]
    return torch.stack(losses).sum() / len(rows)


def backward(
    model: LlamaForCausalLM, ids: torch.Tensor, teacher: LlamaForCausalLM | None = None
) -> float:
    """Accumulate the gradient of `mean_loss` in the model; return that loss."""
    total, ids = 0.0, ids.to(model.device)
    for chunk in ids.split(max(1, CHUNK_TOKENS // (ids.shape[1] - 1))):
        with torch.autocast(model.device.type, dtype=torch.bfloat16):
            loss = mean_loss(model, chunk, teacher) * (len(chunk) / len(ids))
        loss.backward()
        total += loss.item()
    return total


def train(
    model: LlamaForCausalLM,
    sources: Sequence[Source],
    out: Path,
    recipe: Recipe,
    *,
    device: str,
    teacher: LlamaForCausalLM | None = None,
    optims: Sequence[torch.optim.Optimizer] = (),
    extra: Callable[[float], dict] = lambda done: {},
) -> dict:
    """Train in place; write checkpoint.pt and curve.jsonl to `out`; return the recipe's options,
    and the seconds, step, tokens and loss (a moving average) reached.

    A checkpoint in `out` is resumed. The loss is `mean_loss`. `optims` are those of `optimizers` by
    default. `extra` is called before each batch with the progress (0 to 1): it may add to the
    gradient, and returns figures for curve.jsonl.
    """
    out.mkdir(parents=True, exist_ok=True)
    model.to(device).train()  # type: ignore[arg-type]
    optims = optims or optimizers(model)
    state: dict[str, Any] = {"seconds": 0.0, "step": 0, "tokens": 0, "loss": None}
    for group in (group for optim in optims for group in optim.param_groups):
        group["initial_lr"] = group["lr"]
    if (out / "checkpoint.pt").exists():
        saved = torch.load(out / "checkpoint.pt", map_location=device)
        model.load_state_dict(saved["model"])
        state = saved["state"]
        for optim, content in zip(optims, saved["optims"], strict=True):
            optim.load_state_dict(content)
    if recipe.compile:
        for one in (model, teacher):
            if one is not None:
                one.model.compile(dynamic=False)
    rng = np.random.default_rng([recipe.seed, state["step"]])
    bar = tqdm(total=100, unit="%", mininterval=10)

    def save() -> None:
        content = {"model": model.state_dict(), "state": state}
        torch.save(content | {"optims": [o.state_dict() for o in optims]}, out / "partial.pt")
        os.replace(out / "partial.pt", out / "checkpoint.pt")

    saved_s = time.monotonic()
    while (done := progress(recipe, steps=state["step"], seconds=state["seconds"])) < 1:
        started = time.monotonic()
        length = recipe.long_length if rng.random() < recipe.long_share else recipe.length
        ids = windows(sources, length, max(1, recipe.batch_tokens // length), rng)
        figures = extra(done)
        loss = backward(model, ids, teacher)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            for group in optim.param_groups:
                group["lr"] = group["initial_lr"] * multiplier(done, recipe)
            optim.step()
            optim.zero_grad(set_to_none=True)
        average = loss if state["loss"] is None else 0.98 * state["loss"] + 0.02 * loss
        now = time.monotonic()
        state["seconds"] += min(now - started, LONGEST_STEP_S)
        state |= {"step": state["step"] + 1, "loss": average}
        state["tokens"] += ids.numel() - len(ids)
        bar.n = round(100 * done)
        bar.set_postfix_str(f"loss {average:.3f} {state['tokens'] / 1e6:.2f}M tokens")
        if state["step"] % 20 == 0:
            with (out / "curve.jsonl").open("a") as file:
                file.write(json.dumps({**state, **figures}) + "\n")
        if now - saved_s > SAVE_EVERY_S:
            save()
            saved_s = now
    bar.close()
    save()
    return {**state, **asdict(recipe)}
