"""The last stage of the target's training: teach it not to repeat itself.

A small model's greedy text runs into loops, and looping text flatters every n-gram method.
Sequence-level unlikelihood (Welleck et al. 2020, arXiv 1908.04319): the model continues prompts of
its *training* corpus greedily, and each token that completes a 4-gram seen before in that
continuation is made less likely, while ordinary batches keep the language model in place.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from attention import padded_mask
from loop import Source, StepClock, Trainee, progress, windows
from outputs import continue_rows, light_copy
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

HEADERS = ("", "from typing import List\n\n\n", "import math\n\n\n")  # before half of the prompts
WARMUP_STEPS = 8
ENTRY = 24  # repeating tokens of a text that are penalised
PROMPT_TOKENS = 192  # longer prompts are left out: padding costs time


@dataclass(frozen=True)
class Polish:
    """How to polish: `minutes` of training, or `steps` if that is not 0.

    `weight` is that of the penalty beside the next-token loss. `prompts` are continued for two
    steps by `max_new` tokens; three quarters of the texts, those that repeat most, are learned
    from. The last `settle_share` of the time is without penalty.
    """

    minutes: float = 10.0
    steps: int = 0
    lr: float = 2e-4
    weight: float = 0.7
    prompts: int = 32
    max_new: int = 128
    plain_windows: int = 8
    plain_length: int = 512
    settle_share: float = 0.25
    seed: int = 0
    compile: bool = True


@dataclass(frozen=True)
class Written:
    """Texts of a model: ids and mask of real tokens [batch, length], marks of repeating tokens
    [batch, length - start], and the index of the first new token."""

    ids: torch.Tensor
    mask: torch.Tensor
    marks: torch.Tensor
    start: int

    @property
    def rate(self) -> float:
        """The share of the new tokens that repeat, a mean over texts."""
        return (self.marks.sum(1) / self.mask[:, self.start :].sum(1).clamp_min(1)).mean().item()

    def rows(self, rows: torch.Tensor) -> Written:
        """Return some of the texts."""
        return Written(self.ids[rows], self.mask[rows], self.marks[rows], self.start)


def repeats(new_tokens: Sequence[int], n: int = 4) -> list[bool]:
    """Return for each token whether the n-gram that it completes occurred earlier in the text.

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


def marked(ids: torch.Tensor, mask: torch.Tensor, start: int) -> Written:
    """Mark the repeating tokens of rows from `continue_rows`."""
    marks = torch.zeros_like(mask[:, start:], dtype=torch.bool)
    counts = mask[:, start:].sum(1).tolist()
    for row, (tokens, count) in enumerate(zip(ids[:, start:].tolist(), counts, strict=True)):
        marks[row, :count] = torch.tensor(repeats(tokens[:count]), device=ids.device)
    return Written(ids, mask, marks, start)


def unlikelihood(model: LlamaForCausalLM, written: Written) -> torch.Tensor:
    """Return the mean of -log(1 - p) over each text's first `ENTRY` repeating tokens: those that
    lead into a loop, rather than the loop."""
    ids, mask, start = written.ids, written.mask, written.start
    hidden = model.model(
        input_ids=ids,
        attention_mask=padded_mask(mask),
        position_ids=(mask.cumsum(1) - 1).clamp_min(0),
        use_cache=False,
    ).last_hidden_state[:, start - 1 : -1]
    marks = written.marks & (written.marks.cumsum(1) <= ENTRY)
    logits = model.lm_head(hidden[marks])
    chosen = logits.float().log_softmax(-1).gather(-1, ids[:, start:][marks][:, None])
    loss = -torch.log((1 - chosen.exp()).clamp_min(1e-4))
    return loss.sum() / marks.sum().clamp_min(1)


def polish(
    trainee: Trainee,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    sources: Sequence[Source],
    out: Path,
    recipe: Polish,
) -> dict:
    """Fine-tune in place; write polish.jsonl to `out`; return a summary.

    Of the trainee only the loss on ordinary windows is used, not the optimisers. Texts are written
    for two steps at a time.
    """
    model = trainee.model
    rng, clock, spent_s, step, rate = np.random.default_rng(recipe.seed), StepClock(), 0.0, 0, None
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.95))
    batches, writer = prompt_batches(tokenizer, prompts, recipe.prompts, rng), light_copy(model)
    bar = tqdm(total=100, unit="%", mininterval=10)
    while (done := progress(recipe, steps=step, seconds=spent_s)) < 1:
        started, settling = time.monotonic(), done >= 1 - recipe.settle_share
        halves: tuple[Written | None, ...] = (None, None)
        if not settling:
            with torch.no_grad():
                for own, source in zip(writer.parameters(), model.parameters(), strict=True):
                    own.copy_(source)
            written = marked(*continue_rows(writer, next(batches), max_new=recipe.max_new))
            rate = written.rate if rate is None else 0.9 * rate + 0.1 * written.rate
            count = min(2 * (3 * recipe.prompts // 8), len(written.marks))
            worst = written.marks.sum(1).topk(count).indices
            halves = written.rows(worst[::2]), written.rows(worst[1::2])
        for half in halves:
            factor = min((step + 1) / WARMUP_STEPS, 1.2 * (1 - done), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * max(0.0, factor)
            plain = windows(sources, recipe.plain_length, recipe.plain_windows, rng)
            penalty = 0.0
            if half is not None:
                with torch.autocast(trainee.device.type, dtype=torch.bfloat16):
                    loss = unlikelihood(model, half)
                (recipe.weight * loss).backward()
                penalty = loss.item()
            row = {"repeats": rate, "loss": trainee.backward(plain), "penalty": penalty}
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            with (out / "polish.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, **row}) + "\n")
        spent_s += clock.count(settling, time.monotonic() - started)
        bar.n = round(100 * done)
        bar.set_postfix_str(f"step {step} {row}")
    bar.close()
    return {
        "polish_steps": step,
        "polish_minutes": spent_s / 60 if recipe.steps else recipe.minutes,
        "repeats_on_training_prompts": rate,
    }


def prompt_batches(
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    count: int,
    rng: np.random.Generator,
) -> Iterator[list[list[int]]]:
    """Yield batches of `count` prompts as ids, without end, those of similar length together. Half
    have types or examples in their docstring, which loop most; some of these get imports above."""
    short = [p for p in prompts if len(tokenizer(p).input_ids) <= PROMPT_TOKENS] or list(prompts)
    examples = [prompt for prompt in short if ">>>" in prompt or "List[" in prompt] or short
    while True:
        drawn: list[str] = []
        for pool, headers in ((short, ("",)), (examples, HEADERS)):
            for at in rng.integers(0, len(pool), 4 * count):
                drawn.append(headers[rng.integers(len(headers))] + pool[at])
        ids = sorted((tokenizer(prompt).input_ids for prompt in drawn), key=len)
        for at in rng.permutation(range(0, len(ids), count)):
            yield ids[at : at + count]
