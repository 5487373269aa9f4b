"""One training loop for the reference pair: on a CPU (bf16 autocast, AMX) and on a GPU alike.

The target learns from next tokens; the draft from the target's distribution (a Kullback-Leibler
loss), which is what makes the two agree. The learning rate follows *training time*, so a budget
in minutes is kept on any machine, and a run restarted from its checkpoint ends where it would have.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedModel


@dataclass(frozen=True)
class Recipe:
    """How long and how to train. Lengths and batches in tokens, `minutes` of training proper."""

    minutes: float
    batch_tokens: int = 8192
    length: int = 512
    long_length: int = 4096
    long_share: float = 0.12
    warmup_share: float = 0.02
    decay_share: float = 0.5
    lr_matrices: float = 0.02
    lr_rest: float = 3e-3
    seed: int = 0
    compile: bool = True


def multiplier(progress: float, recipe: Recipe) -> float:
    """Return the learning-rate factor at `progress` in [0, 1]: up, level, then linearly down."""
    up = min(1.0, progress / max(recipe.warmup_share, 1e-9))
    down = min(1.0, (1.0 - progress) / recipe.decay_share)
    return max(0.0, min(up, down))


def optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for embeddings and norms."""
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in chosen]
    adam = torch.optim.AdamW(
        rest, lr=recipe.lr_rest, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    muon = torch.optim.Muon(
        matrices, lr=recipe.lr_matrices, weight_decay=0.01, momentum=0.95, nesterov=True
    )
    return [muon, adam]


def batches(
    tokens: np.ndarray, length: int, count: int, rng: np.random.Generator
) -> Iterator[torch.Tensor]:
    """Yield [count, length + 1] windows at random places of a token stream, for ever."""
    while True:
        starts = rng.integers(0, len(tokens) - length - 1, size=count)
        yield torch.from_numpy(
            np.stack([tokens[s : s + length + 1] for s in starts]).astype(np.int64)
        )


def loss_of(
    model: LlamaForCausalLM, ids: torch.Tensor, teacher_logits: torch.Tensor | None
) -> torch.Tensor:
    """Mean loss in nats per token: cross-entropy, or the divergence from a teacher's law."""
    logits = model(ids[:, :-1]).logits
    if teacher_logits is None:
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    wanted = teacher_logits.flatten(0, 1).float().log_softmax(-1)
    given = logits.flatten(0, 1).float().log_softmax(-1)
    return F.kl_div(given, wanted, log_target=True, reduction="batchmean")


def train(
    model: LlamaForCausalLM,
    tokens: np.ndarray,
    out: Path,
    recipe: Recipe,
    *,
    teacher: PreTrainedModel | None = None,
    device: str = "cpu",
) -> dict:
    """Train in place, write checkpoints and `curve.jsonl` under `out`, return a summary.

    A checkpoint found under `out` is continued. `tokens` is a 1-D array of token ids.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    torch.nn.Module.to(model, device).train()
    optims = optimizers(model, recipe)
    base_lr = [group["lr"] for opt in optims for group in opt.param_groups]
    state: dict[str, Any] = {"seconds": 0.0, "step": 0, "tokens": 0}
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        for opt, content in zip(optims, saved["optims"], strict=True):
            opt.load_state_dict(content)
        state = saved["state"]
    rng = np.random.default_rng([recipe.seed, int(state["step"])])
    compute = torch.compile(loss_of) if recipe.compile else loss_of
    budget_s = recipe.minutes * 60
    bar = tqdm(total=round(budget_s), initial=round(state["seconds"]), unit="s", smoothing=0)
    curve = (out / "curve.jsonl").open("a")
    length = 0
    stream: Iterator[torch.Tensor] = iter(())
    average, saved_at = None, time.monotonic()
    while state["seconds"] < budget_s:
        progress = state["seconds"] / budget_s
        wanted = recipe.length if progress < 1 - recipe.long_share else recipe.long_length
        fresh = wanted != length
        if fresh:
            length = wanted
            stream = batches(tokens, length, max(1, recipe.batch_tokens // length), rng)
        started = time.monotonic()
        factor = multiplier(progress, recipe)
        groups = [group for opt in optims for group in opt.param_groups]
        for group, lr in zip(groups, base_lr, strict=True):
            group["lr"] = lr * factor
        ids = next(stream).to(device, non_blocking=True)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            teacher_logits = None
            if teacher is not None:
                with torch.no_grad():
                    teacher_logits = teacher(ids[:, :-1]).logits
            loss = compute(model, ids, teacher_logits)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in optims:
            opt.step()
            opt.zero_grad(set_to_none=True)
        if state["step"] % 20 == 0 or device == "cpu":
            value = loss.item()
            average = value if average is None else 0.95 * average + 0.05 * value
        spent = time.monotonic() - started
        state["seconds"] += min(spent, 2.0) if fresh else spent
        state["step"] += 1
        state["tokens"] += ids.numel() - len(ids)
        bar.n = round(min(state["seconds"], budget_s))
        bar.set_postfix_str(
            f"step {state['step']} loss {average:.3f} {state['tokens'] / 1e6:.1f}M tokens"
        )
        if state["step"] % 20 == 0:
            curve.write(json.dumps({**state, "loss": average, "length": length}) + "\n")
            curve.flush()
        if time.monotonic() - saved_at > 120:
            _save(checkpoint, model, optims, state)
            saved_at = time.monotonic()
    bar.close()
    _save(checkpoint, model, optims, state)
    return {**state, "loss": average, **asdict(recipe)}


def _save(path: Path, model, optims, state) -> None:
    content = {
        "model": model.state_dict(),
        "optims": [opt.state_dict() for opt in optims],
        "state": state,
    }
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    os.replace(partial, path)
