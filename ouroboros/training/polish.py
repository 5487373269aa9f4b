"""The last stage of the target's training: teach it not to repeat itself.

A small model's greedy text runs into loops, and looping text makes every n-gram method look
wonderful. Sequence-level unlikelihood (Welleck et al. 2020, arXiv 1908.04319): the model continues
prompts of its *training* corpus greedily, and each token that completes a 4-gram seen before in
that continuation is made less likely, while ordinary batches keep the language model in place.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ouroboros.training.loop import batches, loss_of

HEAD = re.compile(r'\A(.*?"""(?:.|\n)*?""")', re.S)


def function_prompts(functions: Sequence[str], max_chars: int = 900) -> list[str]:
    """Return the signatures with docstrings of documented functions: prompts without answers."""
    heads = (HEAD.match(text) for text in functions)
    return [head[1] for head in heads if head and len(head[1]) <= max_chars]


def repeats(new_tokens: Sequence[int], n: int = 4) -> list[bool]:
    """Say of each token whether the n-gram that it completes stood earlier in the same text.

    >>> repeats([1, 2, 1, 2, 1], n=2)
    [False, False, False, True, True]
    """
    seen: set[tuple[int, ...]] = set()
    marks = []
    for end in range(1, len(new_tokens) + 1):
        gram = tuple(new_tokens[end - n : end]) if end >= n else None
        marks.append(gram in seen)
        if gram:
            seen.add(gram)
    return marks


@torch.no_grad()
def continue_prompts(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    max_new: int,
    temperature: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return (ids [batch, length], mask of real tokens, where the new tokens start)."""
    rows = [tokenizer(prompt).input_ids for prompt in prompts]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor(
        [[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device
    )
    own = GenerationConfig(
        max_new_tokens=max_new,
        pad_token_id=0,
        eos_token_id=0,
        do_sample=temperature > 0,
        temperature=temperature or None,
    )
    out = model.generate(ids, own, attention_mask=mask)  # type: ignore[misc]
    assert isinstance(out, torch.Tensor)
    new = out[:, width:]
    before_end = (new == 0).cumsum(1) - (new == 0).long() == 0
    return out, torch.cat([mask, before_end.long()], dim=1), width


def unlikelihood(
    model: LlamaForCausalLM, ids: torch.Tensor, mask: torch.Tensor, start: int
) -> tuple[torch.Tensor, float]:
    """Return the mean of -log(1 - p) over repeating tokens, and the share of repeating tokens."""
    real = mask[:, start:].bool()
    marks = torch.zeros_like(real)
    for row, (tokens, count) in enumerate(
        zip(ids[:, start:].tolist(), real.sum(1).tolist(), strict=True)
    ):
        marks[row, :count] = torch.tensor(repeats(tokens[:count]), device=ids.device)
    share = (marks.sum() / real.sum().clamp_min(1)).item()
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    keep = ids.shape[1] - start + 1
    logits = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=keep
    ).logits[:, :-1]
    chosen = logits.float().log_softmax(-1).gather(-1, ids[:, start:, None])[..., 0]
    loss = -torch.log((1 - chosen.exp()).clamp_min(1e-4))
    return (loss * marks).sum() / marks.sum().clamp_min(1), share


def polish(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    tokens: np.ndarray,
    out: Path,
    *,
    minutes: float,
    device: str,
    lr: float,
    batch: int = 16,
    max_new: int = 128,
    seed: int = 0,
) -> dict:
    """Fine-tune in place for `minutes`; write `polish.jsonl` under `out`; return a summary.

    Half of each batch are prompts with types or examples in their docstring, which loop most.
    """
    torch.nn.Module.to(model, device).train()
    rng = np.random.default_rng(seed)
    examples = [prompt for prompt in prompts if ">>>" in prompt or "List[" in prompt] or prompts
    stream = batches(tokens, 512, 8, rng)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    started, step, rate = time.monotonic(), 0, None
    budget_s = minutes * 60
    bar = tqdm(total=round(budget_s), unit="s")
    with (out / "polish.jsonl").open("a") as log:
        while (spent := time.monotonic() - started) < budget_s:
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, 2 * (1 - spent / budget_s))
            chosen = [prompts[i] for i in rng.integers(0, len(prompts), batch // 2)]
            chosen += [examples[i] for i in rng.integers(0, len(examples), batch - len(chosen))]
            with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
                ids, mask, start = continue_prompts(model, tokenizer, chosen, max_new=max_new)
                penalty, share = unlikelihood(model, ids, mask, start)
                plain = loss_of(model, next(stream).to(device), None)
            (plain + penalty).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            rate = share if rate is None else 0.9 * rate + 0.1 * share
            row = {"step": step, "loss": plain.item(), "penalty": penalty.item(), "repeats": rate}
            log.write(json.dumps(row) + "\n")
            log.flush()
            bar.n = round(spent)
            bar.set_postfix_str(f"step {step} loss {row['loss']:.3f} repeats {rate:.3f}")
    bar.close()
    return {"polish_steps": step, "polish_minutes": minutes, "repeats_on_training_prompts": rate}


def own_outputs(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    max_new: int = 128,
    batch: int = 32,
) -> np.ndarray:
    """Return the model's own continuations of prompts, half greedy, half sampled, as one stream."""
    parts = []
    for at in tqdm(range(0, len(prompts), batch), desc="own outputs"):
        temperature = 0.0 if (at // batch) % 2 else 0.8
        ids, mask, _ = continue_prompts(
            model, tokenizer, prompts[at : at + batch], max_new=max_new, temperature=temperature
        )
        for row, real in zip(ids, mask.bool(), strict=True):
            parts.append(np.array([*row[real].tolist(), 0], dtype=np.uint16))
    return np.concatenate(parts)
