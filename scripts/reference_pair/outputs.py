"""Generate a model's continuations of many prompts, for the polishing stage and for the draft.

A draft predicts text that its target generated, so it also trains on such text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

HEAD = re.compile(r'\A(.*?"""(?:.|\n)*?""")', re.S)
BATCH = 64
TEMPERATURES = (0.0, 0.8)  # batches alternate between these
PASSAGES = 0.4  # share of prompts from random places of the training stream
MAX_NEW = 160


def function_prompts(functions: Sequence[str], max_chars: int = 900) -> list[str]:
    """Return the signatures and docstrings of documented functions, without bodies, as prompts."""
    heads = (HEAD.match(text) for text in functions)
    return [head[1] for head in heads if head and len(head[1]) <= max_chars]


def light_copy(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a copy with bfloat16 weights, for generation; rotary frequencies stay in float32."""
    light = copy.deepcopy(model).eval().requires_grad_(False)
    light.set_attn_implementation("sdpa")
    for parameter in light.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return light


@torch.no_grad()
def continue_rows(
    model: LlamaForCausalLM,
    rows: Sequence[Sequence[int]],
    *,
    max_new: int,
    temperature: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Continue `rows` of prompt ids in a batch, at `temperature` (0: greedily); return the ids
    [batch, length], padded at the left; a mask [batch, length] that is 1 up to the first end token
    and 0 at padding; and the index of the first new token."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + [*row] for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]).to(ids)
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


def own_outputs(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    heads: Sequence[str],
    tokens: np.ndarray,
    count: int,
    *,
    seed: int,
) -> np.ndarray:
    """Return `count` prompts with the model's continuations as one stream of ids (uint16), each
    ended by id 0. Prompts are function `heads` and, for a share `PASSAGES`, 32 to 160 tokens of the
    training stream `tokens`; a batch has prompts of similar length."""
    rng = np.random.default_rng(seed)
    rows = [tokenizer(head).input_ids for head in heads[: round(count * (1 - PASSAGES))]]
    while len(rows) < count:
        length = int(rng.integers(32, 160))
        at = int(rng.integers(0, len(tokens) - length))
        rows.append(tokens[at : at + length].tolist())
    rows.sort(key=len)
    torch.manual_seed(seed)
    starts, parts = rng.permutation(range(0, len(rows), BATCH)), []
    for turn, at in enumerate(tqdm(starts, desc="own outputs", mininterval=10)):
        temperature = TEMPERATURES[turn % len(TEMPERATURES)]
        batch = rows[at : at + BATCH]
        ids, mask, _ = continue_rows(model, batch, max_new=MAX_NEW, temperature=temperature)
        for row, real in zip(ids, mask.bool(), strict=True):
            parts.append(np.array([*row[real].tolist(), 0], dtype=np.uint16))
    return np.concatenate(parts)
