"""How good completions are: a task's scores over prompts, and over all completions together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.stats import binomtest

from ouroboros.bench.metrics.intervals import Interval, mean_of
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.tasks.task import YES_OR_NO, CorpusScored, Example, Task


def score_intervals(
    samples: Sequence[Sample], scores: Mapping[tuple[str, str, int], Mapping[str, float]]
) -> dict[str, Interval]:
    """Return means over prompts of the task's scores; "passed" becomes pass@1.

    The interval is Wilson's for scores in `YES_OR_NO`; for others, and with repeats, prompts are
    resampled.
    """
    by_prompt: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for name, value in scores.get(sample.key, {}).items():
            by_prompt.setdefault(name, {}).setdefault(sample.example, []).append(value)
    found = {}
    for name, prompts in by_prompt.items():
        means = [float(np.mean(values)) for values in prompts.values()]
        once = all(len(values) == 1 for values in prompts.values())
        sure = wilson(int(sum(means)), len(means)) if once and name in YES_OR_NO else mean_of(means)
        found["pass@1" if name == "passed" else name] = sure
    return found


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's score interval of a share."""
    found = binomtest(successes, trials).proportion_ci(method="wilson")
    return Interval(successes / trials, float(found.low), float(found.high))


def corpus_scores(
    task: Task, examples: Sequence[Example], samples: Iterable[Sample]
) -> dict[str, dict[str, float]]:
    """Return by decoder the task's scores of all its completions together, such as corpus BLEU; {}
    where the task has none."""
    if not isinstance(task, CorpusScored):
        return {}
    known = {example.id: example for example in examples}
    pairs: dict[str, list[tuple[Example, str]]] = {}
    for sample in samples:
        if not sample.error:
            pairs.setdefault(sample.decoder, []).append((known[sample.example], sample.text))
    return {name: task.corpus_scores(own) for name, own in pairs.items()}
