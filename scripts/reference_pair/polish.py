"""Polish the target, the last stage of its training: teach it not to repeat itself.

A small model's greedy text runs into loops, and such text flatters every n-gram method. The remedy
is sequence-level unlikelihood (Welleck et al. 2020, arXiv 1908.04319): the model continues prompts
of its *training* corpus greedily, and each token that completes a 4-gram seen before in that
continuation is made less probable, while ordinary batches preserve the language model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from loop import Recipe, Source, train
from outputs import continue_rows, light_copy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

HEADERS = ("", "from typing import List\n\n\n", "import math\n\n\n")  # before half of the prompts
ENTRY = 24  # penalise only the first repeating tokens of a text, which lead into a loop
PROMPT_TOKENS = 192  # longer prompts are left out: padding costs time


@dataclass
class Polish(Recipe):
    """The polishing recipe: as for training, with AdamW at the peak learning rate `lr`, and a
    penalty on repetition, which counts `weight` times as much as the next-token loss.

    For every two steps, `prompts` prompts are continued by `max_new` tokens; the penalty is on the
    most repetitive three quarters of these texts. The last `settle_share` has no penalty.
    """

    minutes: float = 10.0
    batch_tokens: int = 4096
    long_share: float = 0.0
    warmup_share: float = 0.04
    decay_share: float = 0.83
    lr: float = 2e-4
    weight: float = 0.7
    prompts: int = 32
    max_new: int = 128
    settle_share: float = 0.25


def repeats(new_tokens: Sequence[int], n: int = 4) -> list[bool]:
    """Return for each token whether the n-gram that it completes occurred earlier in the text.

    >>> repeats([1, 2, 1, 2, 1], n=2)
    [False, False, False, True, True]
    """
    starts = range(len(new_tokens) - n + 1)
    grams = pd.Series([tuple(new_tokens[at : at + n]) for at in starts], dtype=object)
    return [False] * (len(new_tokens) - len(grams)) + grams.duplicated().tolist()


@torch.compiler.set_stance("force_eager")
def unlikelihood(
    model: LlamaForCausalLM, ids: torch.Tensor, mask: torch.Tensor, marks: torch.Tensor
) -> torch.Tensor:
    """Return the mean of -log(1 - p) over each text's first `ENTRY` repeating tokens; p is the
    model's probability of the token.

    ids and mask [batch, length], as from `continue_rows`; marks [batch, new tokens] is true at
    repeating tokens (see `repeats`).
    """
    new = marks.shape[1]
    model.model.set_attn_implementation("sdpa")
    hidden = model.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp_min(0),
        use_cache=False,
    ).last_hidden_state[:, -new - 1 : -1]
    marks = marks & (marks.cumsum(1) <= ENTRY)
    logits = model.lm_head(hidden[marks])
    chosen = logits.float().log_softmax(-1).gather(-1, ids[:, -new:][marks][:, None])
    loss = -torch.log((1 - chosen.exp()).clamp_min(1e-4))
    return loss.sum() / marks.sum().clamp_min(1)


def polish(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    sources: Sequence[Source],
    out: Path,
    recipe: Polish,
    *,
    device: str,
) -> dict:
    """Fine-tune in place, with the loop of `train`; return its summary and "repeats", the share of
    repeated 4-grams in the last texts (a moving average)."""
    rng, rate = np.random.default_rng(recipe.seed), None
    model.to(device)  # type: ignore[arg-type]
    batches, writer = prompt_batches(tokenizer, prompts, recipe.prompts, rng), light_copy(model)
    waiting: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def penalise(done: float) -> dict:
        nonlocal rate
        if not waiting and done < 1 - recipe.settle_share:
            with torch.no_grad():
                for own, source in zip(writer.parameters(), model.parameters(), strict=True):
                    own.copy_(source)
            ids, mask, start = continue_rows(writer, next(batches), max_new=recipe.max_new)
            marks = torch.zeros_like(mask[:, start:], dtype=torch.bool)
            for row, real, text in zip(marks, mask[:, start:].bool(), ids[:, start:], strict=True):
                row[real] = torch.tensor(repeats(text[real].tolist()), device=ids.device)
            share = (marks.sum(1) / mask[:, start:].sum(1).clamp_min(1)).mean().item()
            rate = share if rate is None else 0.9 * rate + 0.1 * share
            worst = marks.sum(1).topk(3 * len(ids) // 4).indices
            waiting.extend((ids[own], mask[own], marks[own]) for own in (worst[::2], worst[1::2]))
        if not waiting:
            return {"repeats": rate, "penalty": 0.0}
        with torch.autocast(model.device.type, dtype=torch.bfloat16):
            loss = unlikelihood(model, *waiting.pop())
        (recipe.weight * loss).backward()
        return {"repeats": rate, "penalty": loss.item()}

    optim = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.95))
    summary = train(model, sources, out, recipe, device=device, optims=[optim], extra=penalise)
    return {**summary, "repeats": rate}


def prompt_batches(
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    count: int,
    rng: np.random.Generator,
) -> Iterator[list[list[int]]]:
    """Yield batches of `count` prompts of similar length, as ids, without end. Half of the prompts
    are drawn from those with `List[...]` or `>>>`, which cause most loops, after a header of
    `HEADERS`."""
    short = [p for p in prompts if len(tokenizer(p).input_ids) <= PROMPT_TOKENS] or list(prompts)
    examples = [prompt for prompt in short if ">>>" in prompt or "List[" in prompt] or short
    while True:
        drawn = [str(prompt) for prompt in rng.choice(short, 4 * count)]
        drawn += [str(rng.choice(HEADERS)) + str(p) for p in rng.choice(examples, 4 * count)]
        ids = sorted((tokenizer(prompt).input_ids for prompt in drawn), key=len)
        for at in rng.permutation(range(0, len(ids), count)):
            yield ids[at : at + count]
