"""Measure a reference pair, as its model card ouroboros/reference/CARD.md reports it.

- held-out loss by kind of text
- by temperature, on HumanEval prompts: agreement of draft and target, and repetition rate
- the temperature at which text is as repetitive as real models' text
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from loop import mean_loss
from tqdm import tqdm

from ouroboros.bench.metrics.metrics import repetition
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.loop import eos_ids
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.calls import alone, predict
from ouroboros.decode import RootOnly, stream
from ouroboros.detokenizer import StopStrings
from ouroboros.engine.model import CachedModel
from ouroboros.tree import TokenTree

TEMPERATURES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
MATCHED = 0.14  # share of repeated 4-grams that greedy text of real code models has
MAX_NEW = 128
LOSS_TOKENS = 1024  # of each held-out document


def evaluation(
    target: CachedModel, draft: CachedModel, held_out: Mapping[str, Sequence[str]], prompts: int
) -> dict:
    """Return what the model card reports.

    - "loss": `heldout_loss` by model ("target", "draft") and kind of held-out text
    - "humaneval": `on_humaneval` of the first `prompts` problems, by temperature (as text)
    - "matched_temperature": the temperature with the repetition rate `MATCHED`, interpolated; None
      if the rates of `TEMPERATURES` are all higher or all lower
    """
    humaneval = {str(t): on_humaneval(target, draft, t, prompts) for t in TEMPERATURES}
    rates = sorted((humaneval[str(t)]["repetition_rate"], t) for t in TEMPERATURES)
    repeated, temperatures = np.array(rates).T
    matched = np.interp(MATCHED, repeated, temperatures, left=np.nan, right=np.nan)
    return {
        "loss": {
            name: {kind: heldout_loss(model, texts) for kind, texts in held_out.items()}
            for name, model in (("target", target), ("draft", draft))
        },
        "humaneval": humaneval,
        "matched_temperature": None if np.isnan(matched) else round(float(matched), 2),
    }


def on_humaneval(target: CachedModel, draft: CachedModel, temperature: float, prompts: int) -> dict:
    """Decode the first `prompts` problems with the target; return their number (prompts), the share
    of tokens that the draft selects too (agreement), the mean repetition_rate, the share of texts
    with a higher rate than 30 % (above_30_percent) and mean_new_tokens."""
    task, rows = HumanEval(), []
    sampling = Sampling(temperature=temperature)
    for example in tqdm(list(task.load())[:prompts], desc=f"T={temperature}", mininterval=10):
        prompt = target.tokenizer(example.prompt).input_ids
        stop = StopStrings(target.tokenizer, task.stop, after=prompt)
        choose = sampling.choose(example.id, 0, vocab=target.vocab_size)
        target.empty()
        draft.empty()
        eos, plain = eos_ids(target), RootOnly()
        for trace in stream(target, plain, prompt, max_new=MAX_NEW, eos=eos, choose=choose):
            new = trace.new_tokens
            if (keep := stop(new)) is not None:  # the benchmark's stop string
                new = new[:keep]
                break
        tree = TokenTree.chain(prompt[-1], new[:-1])
        drafted = alone(predict(draft, draft.new_sequence(), prompt, tree, choose))
        agreed = sum(map(operator.eq, drafted, new))
        rows.append({"tokens": len(new), "agreed": agreed, "repetition": repetition(new)})
    found = pd.DataFrame(rows)
    return {
        "prompts": len(found),
        "agreement": float(found["agreed"].sum() / found["tokens"].sum()),
        "repetition_rate": float(found["repetition"].mean()),
        "above_30_percent": float((found["repetition"].dropna() > 0.3).mean()),
        "mean_new_tokens": float(found["tokens"].mean()),
    }


@torch.no_grad()
def heldout_loss(model: CachedModel, texts: Sequence[str]) -> dict[str, float]:
    """Return the mean loss over each text's first `LOSS_TOKENS` tokens, "nats_per_token", and their
    number, "tokens"."""
    nats = tokens = 0.0
    for text in texts:
        ids = model.tokenizer(text, return_tensors="pt").input_ids[:, :LOSS_TOKENS]
        count = ids.shape[1] - 1
        nats += mean_loss(model.model, ids.to(model.device)).item() * count if count else 0.0
        tokens += count
    return {"nats_per_token": nats / tokens, "tokens": tokens}
