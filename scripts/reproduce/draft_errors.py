"""Measure the errors of the reference pair's draft, for simulated drafts.

python scripts/reproduce/draft_errors.py ouroboros/bench/replay/draft_errors.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from agreement import REFERENCE
from ouroboros.conf import FOLDER

from ouroboros.bench.replay.simulated_draft import CHOICES, NOWHERE, DraftErrorModel, repeats
from ouroboros.bench.run.loop import eos_ids
from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.decode import RootOnly, decode
from ouroboros.engine.model import CachedModel
from ouroboros.select import argmax
from ouroboros.tree import TokenTree

ROWS = 48  # confidence rows kept per rank
SHARES = [f"share {rank}" for rank in range(1, CHOICES + 1)]


def measured_errors(
    target: CachedModel,
    draft: CachedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new: int,
    eos: Collection[int] = (),
    about: Mapping[str, object],
) -> DraftErrorModel:
    """Measure at which rank the draft model has each token of the target's greedy texts, with one
    draft call per text. Raises `ValueError` for too few prompts: each rank has to occur."""
    rows = []
    for prompt in map(list, prompts):
        target.empty()
        draft.empty()
        text = decode(target, RootOnly(), prompt, max_new=max_new, eos=eos).new_tokens
        tree = TokenTree.chain(prompt[-1], text[:-1])
        logits = draft.score(draft.new_sequence(), prompt, tree)
        top = logits.double().softmax(-1).topk(CHOICES, dim=-1)
        first, again = argmax(logits, prompt, tree), repeats([*prompt, *text])[len(prompt) :]
        ids, shares = top.indices.tolist(), top.values.tolist()
        for at, truth in enumerate(text):
            choices = [first[at], *ids[at][1:]]
            rank = choices.index(truth) + 1 if truth in choices else NOWHERE
            rows.append([rank, again[at], *shares[at]])
    found = pd.DataFrame(rows, columns=["rank", "repeats", *SHARES])
    right = found["rank"] == 1
    agreed = right.groupby(found["repeats"]).mean()
    lacking = set(range(CHOICES + 1)) - set(found["rank"])
    if lacking or len(agreed) < 2 or not agreed.between(0, 1, inclusive="neither").all():
        raise ValueError(
            f"too few positions (none of rank {lacking}, 0: none of the choices): give more prompts"
        )
    known = {**about, "prompts": len(prompts), "places": len(found)}
    known["agreement"] = round(float(right.mean()), 4)
    kept_rows: dict = {}
    for key, of_rank in found.sort_values(SHARES, ascending=False).groupby("rank"):
        own = of_rank[SHARES]
        kept = min(ROWS, len(own))  # evenly spread by the first choice's probability
        picked = [int((index + 0.5) * len(own) / kept) for index in range(kept)]
        kept_rows[key] = list(own.iloc[picked].round(4).itertuples(index=False, name=None))
    ranks = found.loc[~right, "rank"].value_counts(normalize=True).round(4)
    odds = agreed / (1 - agreed)
    return DraftErrorModel(
        {rank: float(ranks[rank]) for rank in range(2, CHOICES + 1)},
        kept_rows,
        round(float(odds[True] / odds[False]), 4),
        known,
    )


def main(path: Path) -> None:
    target, draft = load_pair(REFERENCE, with_draft=True).models
    task = Prompts(path=str(FOLDER / "task" / "development.jsonl"))
    prompts = [target.tokenizer(one.prompt).input_ids for one in task.load()[:30:3]]
    about = {"pair": "the reference pair", "dtype": REFERENCE.dtype, "task": "development.jsonl"}
    eos = eos_ids(target)
    found = measured_errors(target, draft, prompts, max_new=task.max_new, eos=eos, about=about)
    path.write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
    print(found.about)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
