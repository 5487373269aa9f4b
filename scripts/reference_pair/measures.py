"""What is measured of a reference pair: losses, agreement by temperature and position, repetition.

Nothing here writes files; `evaluate.py` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from loop import loss_of
from tqdm import tqdm
from transformers import LlamaForCausalLM

from ouroboros.bench.metrics.metrics import repetition
from ouroboros.bench.run.config import Sampling, derive_seed
from ouroboros.bench.run.loop import StopStrings, text_of
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.decode import RootOnly, predict, stream
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector
from ouroboros.tree import TokenTree

EDGES = (0, 512, 2048, 4096)  # of the ranges of positions, in tokens
MAX_NEW = 128
SHOWN = ("HumanEval/0", "HumanEval/23", "HumanEval/53")
DOCUMENTS = 12  # the longest, so that each range holds text of the same ones
ROWS = 512  # positions whose logits and noise lie in memory at once


def short_samples(tokenizer, kinds: dict[str, list[str]]) -> dict[str, list]:
    """Return the first ids of a few documents of each kind, to look at while training goes on."""
    return {
        kind: [tokenizer(text).input_ids[:513] for text in texts[:24]]
        for kind, texts in kinds.items()
        if texts
    }


@torch.no_grad()
def heldout_losses(model: LlamaForCausalLM, samples: dict[str, list]) -> dict[str, float]:
    """Mean nats per token of each kind of text."""
    losses = {}
    for kind, rows in samples.items():
        nats = [loss_of(model, torch.tensor([row], device=model.device)).item() for row in rows]
        losses[kind] = float(np.average(nats, weights=[len(row) - 1 for row in rows]))
    return losses


@torch.no_grad()
def draft_figures(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, samples: dict[str, list]
) -> dict[str, dict[str, float]]:
    """Divergence in nats and agreement of the most likely tokens, for each kind of text."""
    figures = {}
    for kind, rows in samples.items():
        sums = np.zeros(3)
        for row in rows:
            ids = torch.tensor([row[:-1]], device=draft.device)
            law, given = (
                m(ids, use_cache=False).logits[0].log_softmax(-1) for m in (target, draft)
            )
            agreed = (law.argmax(-1) == given.argmax(-1)).sum().item()
            sums += [(law.exp() * (law - given)).sum().item(), agreed, len(law)]
        figures[kind] = {"divergence": sums[0] / sums[2], "agreement": sums[1] / sums[2]}
    return figures


@torch.inference_mode()
def heldout_loss(model: CachedModel, texts: Sequence[str], limit: int = 1024) -> dict[str, float]:
    """Mean nats per token, and per byte, of each text's first `limit` tokens."""
    nats = count = size = 0.0
    for text in texts:
        ids = model.tokenizer(text).input_ids[:limit]
        if len(ids) < 2:
            continue
        logits = model.model(torch.tensor([ids])).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum")
        nats += loss.item()
        count += len(ids) - 1
        size += len(text_of(model.tokenizer, ids[1:]).encode())
    return {"nats_per_token": nats / count, "nats_per_byte": nats / size, "tokens": count}


@torch.inference_mode()
def agreement_by_position(
    target: CachedModel,
    draft: CachedModel,
    texts: Sequence[str],
    temperatures: Sequence[float],
    *,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Share of positions of held-out documents where both models choose the same token, with the
    same noise, for each temperature and range of positions."""
    rows = [target.tokenizer(text).input_ids[: EDGES[-1]] for text in texts]
    rows = sorted(rows, key=len)[-DOCUMENTS:]
    agreed = {t: np.zeros(EDGES[-1]) for t in temperatures}
    seen = np.zeros(EDGES[-1])
    for number, row in enumerate(tqdm(rows, desc="by position", mininterval=10)):
        noise = torch.Generator().manual_seed(derive_seed(seed, "by position", number))
        hidden = [m.model.model(torch.tensor([row])).last_hidden_state[0] for m in (target, draft)]
        for at in range(0, len(row), ROWS):
            logits = [
                m.model.lm_head(h[at : at + ROWS]).float()
                for m, h in zip((target, draft), hidden, strict=True)
            ]
            gumbel = -torch.empty_like(logits[0]).exponential_(generator=noise).log()
            for t in temperatures:
                a, b = ((x + t * gumbel).argmax(-1) for x in logits)
                agreed[t][at : at + len(a)] += (a == b).numpy()
            seen[at : at + len(logits[0])] += 1
    return {str(t): _by_range(agreed[t], seen) for t in temperatures}


def _by_range(agreed: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    return {
        f"{low}-{high}": float(agreed[low:high].sum() / seen[low:high].sum())
        for low, high in itertools.pairwise(EDGES)
        if seen[low:high].any()
    }


def complete(
    target: CachedModel, prompt: list[int], stop: StopStrings, choose: TokenSelector
) -> list[int]:
    """Return the target's own completion, ended as the benchmark ends it."""
    eos = {target.model.generation_config.eos_token_id}
    for trace in stream(target, RootOnly(), prompt, max_new=MAX_NEW, eos=eos, choose=choose):
        keep = stop(trace.new_tokens)
        if keep is not None:
            return trace.new_tokens[:keep]
    return trace.new_tokens


def agreement(
    draft: CachedModel, prompt: list[int], new: list[int], choose: TokenSelector
) -> list[bool]:
    """Say, for each new token, whether the draft would have chosen it after the same tokens."""
    chosen = predict(
        draft, draft.new_sequence(), prompt, TokenTree.chain(prompt[-1], new[:-1]), choose
    )
    return [a == b for a, b in zip(chosen, new, strict=True)]


def on_humaneval(
    target: CachedModel,
    draft: CachedModel,
    temperature: float,
    *,
    seed: int = 0,
    limit: int | None = None,
) -> dict:
    """Agreement, repetition and samples over the problems (or the first `limit`) at one
    temperature."""
    task, agreed, rates, lengths, shown = HumanEval(), [], [], [], {}
    sampling = Sampling(seed=seed, temperature=temperature)
    for example in tqdm(list(task.load())[:limit], desc=f"T={temperature}", mininterval=10):
        prompt = target.tokenizer(example.prompt).input_ids
        choose = sampling.choose(example.id, 0, vocab=target.vocab_size)
        target.empty()
        draft.empty()
        new = complete(target, prompt, StopStrings(target.tokenizer, task.stop), choose)
        agreed += agreement(draft, prompt, new, choose)
        rates.append(repetition(new))
        lengths.append(len(new))
        if example.id in SHOWN:
            shown[example.id] = [example.prompt, text_of(target.tokenizer, new)]
    known = [rate for rate in rates if rate is not None]
    return {
        "prompts": len(rates),
        "agreement": float(np.mean(agreed)),
        "repetition_rate": float(np.mean(known)),
        "above_30_percent": float(np.mean([rate > 0.3 for rate in known])),
        "mean_new_tokens": float(np.mean(lengths)),
        "samples": shown,
    }


def matched_temperature(rates: dict[float, float], wanted: float) -> float | None:
    """Return the temperature at which text repeats as much as wanted, between measured ones.

    None where no pair of neighbours encloses the rate.

    >>> matched_temperature({0.0: 0.25, 0.5: 0.15, 0.8: 0.05}, 0.14)
    0.53
    """
    for (low, above), (high, below) in itertools.pairwise(sorted(rates.items())):
        if above >= wanted >= below and above > below:
            return round(low + (high - low) * (above - wanted) / (above - below), 2)
    return None
