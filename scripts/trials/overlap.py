"""Measure how often a draft can agree with its target on the text of a sampled run, in two ways.

    ouroboros bench experiment=acceptance temperature=0.7 results_dir=DIR
    python scripts/trials/overlap.py DIR

`bound` is 1 - TV, the mean over positions of sum_i min(p_i, q_i): the share of draft tokens that
rejection sampling accepts (Leviathan et al. 2023). `shared` is the share of positions at which
draft and target draw the same token with shared noise; its expectation is at most the bound
(Daliri et al. 2024). Both models score the text of plain decoding. The last line on stdout is one
JSON document.
"""

from __future__ import annotations

import argparse
import json

import torch
from tqdm import tqdm

from ouroboros import CachedModel, TokenTree
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.prompts import Answers, prompt_ids
from ouroboros.bench.run.run import rebuild
from ouroboros.select import Sampler


def overlap(path: str) -> None:
    """Print both shares over the texts of the results folder `path`."""
    folder = ResultsFolder(path)
    job = rebuild(folder)
    if len(job.models) < 2 or job.sampling.repetition_penalty != 1.0:
        raise ValueError("give a run with a draft model and no repetition penalty")
    if PLAIN not in job.decoders:
        raise ValueError(f"the run has no decoder {PLAIN!r}, whose text both models score")
    examples, samples = {example.id: example for example in job.examples}, folder.load_samples()
    answers = Answers(job.task, job.examples, next(iter(job.decoders)), samples)
    shared, same, count = 0.0, 0, 0
    for sample in tqdm([s for s in samples if s.decoder == PLAIN and not s.error]):
        asked = answers.with_history(examples[sample.example], sample.repeat)
        prompt = prompt_ids(job.target.tokenizer, asked)
        choose = job.sampling.choose(sample.example, sample.repeat, vocab=job.target.vocab_size)
        laws, drawn = [], []
        for model in job.models:
            logits, tree = rows(model, prompt, list(sample.new_tokens))
            warped = choose.warped(logits) if isinstance(choose, Sampler) else one_hot(logits)
            laws.append(warped.double().softmax(-1))
            drawn.append(choose(logits, prompt, tree))
        width = min(law.shape[-1] for law in laws)
        shared += float(torch.minimum(laws[0][:, :width], laws[1][:, :width]).sum())
        same += sum(a == b for a, b in zip(*drawn, strict=True))
        count += len(sample.new_tokens)
    found = {"bound": shared / count, "shared": same / count, "positions": count}
    print(json.dumps({"temperature": job.sampling.temperature, **found}))


def rows(model: CachedModel, prompt: list[int], new: list[int]) -> tuple[torch.Tensor, TokenTree]:
    """Return a model's logits [len(new), width] along a text, and the chain that they are of."""
    model.empty()
    tree = TokenTree.chain(prompt[-1], new[:-1])
    return model.score(model.new_sequence(), prompt, tree), tree


def one_hot(logits: torch.Tensor) -> torch.Tensor:
    """Return logits of the law at temperature 0."""
    best = logits.argmax(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="the results folder of a run with a draft model")
    overlap(parser.parse_args().folder)
