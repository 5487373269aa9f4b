"""Measure how often a draft agrees with its target on the text of a sampled run, in two ways.

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
from torch.nn.functional import one_hot
from tqdm import tqdm

from ouroboros import TokenTree
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.prompts import Answers, prompt_ids
from ouroboros.bench.run.run import rebuild
from ouroboros.select import Sampler


def overlap(path: str) -> None:
    """Print `bound` and `shared` for the texts of the results folder `path`."""
    folder = ResultsFolder(path)
    job = rebuild(folder)
    if len(job.models) < 2 or job.sampling.repetition_penalty != 1.0 or PLAIN not in job.decoders:
        raise SystemExit(f"give a run of {PLAIN!r} with a draft and without a repetition penalty")
    examples, samples = {example.id: example for example in job.examples}, folder.load_samples()
    by_key = {sample.key: sample for sample in samples}
    answers = Answers(job.task, job.examples, next(iter(job.decoders)), by_key)
    shared, same, count = 0.0, 0, 0
    for sample in tqdm([s for s in samples if s.decoder == PLAIN and not s.error]):
        history = answers.with_history(examples[sample.example], sample.repeat)
        prompt = prompt_ids(job.target.tokenizer, history)
        tree = TokenTree.chain(prompt[-1], sample.new_tokens[:-1])
        choose = job.sampling.choose(sample.example, sample.repeat, vocab=job.target.vocab_size)
        distributions, drawn = [], []
        for model in job.models:
            model.empty()
            logits = model.score(model.new_sequence(), prompt, tree)
            drawn.append(choose(logits, prompt, tree))
            if isinstance(choose, Sampler):
                distributions.append(choose.warped(logits).double().softmax(-1))
            else:
                distributions.append(one_hot(logits.argmax(-1), logits.shape[-1]).double())
        width = min(own.shape[-1] for own in distributions)
        shared += float(torch.minimum(*(own[:, :width] for own in distributions)).sum())
        same += sum(a == b for a, b in zip(*drawn, strict=True))
        count += len(sample.new_tokens)
    found = {"bound": shared / count, "shared": same / count, "positions": count}
    print(json.dumps({"temperature": job.sampling.temperature, **found}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="the results folder of a run with a draft model")
    overlap(parser.parse_args().folder)
