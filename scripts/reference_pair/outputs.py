"""A model's own continuations, many prompts at once: for the polish, and for the draft to learn on.

A draft is asked about text that its target wrote, so it learns on such text too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

BATCH = 64
TEMPERATURES = (0.0, 0.8)
PASSAGES = 0.4
MAX_NEW = 160


def light_copy(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a copy in bfloat16 for writing text; rotary frequencies stay in float32."""
    light = copy.deepcopy(model).eval().requires_grad_(False)
    light.set_attn_implementation("sdpa")
    for parameter in light.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return light


@torch.no_grad()
def refresh(light: LlamaForCausalLM, model: LlamaForCausalLM) -> None:
    """Give a light copy the model's present weights."""
    for own, source in zip(light.parameters(), model.parameters(), strict=True):
        own.copy_(source)


@torch.no_grad()
def continue_rows(
    model: LlamaForCausalLM,
    rows: Sequence[Sequence[int]],
    *,
    max_new: int,
    temperature: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return (ids [batch, length], mask of real tokens, where the new tokens start)."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + [*row] for row in rows], device=model.device)
    mask = torch.tensor(
        [[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device
    )
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    out: torch.Tensor = model.generate(  # type: ignore[misc, assignment]
        ids,
        attention_mask=mask,
        max_new_tokens=max_new,
        pad_token_id=0,
        eos_token_id=0,
        **(sampling if temperature else {"do_sample": False}),
    )
    new = out[:, width:]
    before_end = (new == 0).cumsum(1) - (new == 0).long() == 0
    return out, torch.cat([mask, before_end.long()], dim=1), width


def prompts_of(
    tokenizer: PreTrainedTokenizerFast,
    heads: Sequence[str],
    tokens: np.ndarray,
    count: int,
    *,
    seed: int,
) -> list[list[int]]:
    """Return prompts as ids, ordered by length: function heads, and a share of `PASSAGES`, each
    32 to 160 tokens from a random place of the training stream."""
    rng = np.random.default_rng(seed)
    rows = [tokenizer(head).input_ids for head in heads[: round(count * (1 - PASSAGES))]]
    for _ in range(count - len(rows)):
        length = int(rng.integers(32, 160))
        at = int(rng.integers(0, len(tokens) - length))
        rows.append(tokens[at : at + length].tolist())
    return sorted(rows, key=len)


def own_outputs(
    model: LlamaForCausalLM,
    rows: Sequence[Sequence[int]],
    *,
    seed: int,
) -> np.ndarray:
    """Return prompts with the model's continuations as one stream of ids, each ended by id 0.

    Batches take turns at the temperatures.
    """
    torch.manual_seed(seed)
    starts = np.random.default_rng(seed).permutation(range(0, len(rows), BATCH))
    parts = []
    for turn, at in enumerate(tqdm(starts, desc="own outputs", mininterval=10)):
        ids, mask, _ = continue_rows(
            model,
            rows[at : at + BATCH],
            max_new=MAX_NEW,
            temperature=TEMPERATURES[turn % len(TEMPERATURES)],
        )
        for row, real in zip(ids, mask.bool(), strict=True):
            parts.append(np.array([*row[real].tolist(), 0], dtype=np.uint16))
    return np.concatenate(parts)
