"""Scores of a whole run that are no means of scores per completion, such as corpus BLEU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.tasks.task import CorpusScored, Example, Task


def corpus_scores(
    task: Task, examples: Sequence[Example], samples: Iterable[Sample]
) -> dict[str, dict[str, float]]:
    """Return by decoder the task's scores of all its completions together; {} where the task has
    none."""
    if not isinstance(task, CorpusScored):
        return {}
    known = {example.id: example for example in examples}
    pairs: dict[str, list[tuple[Example, str]]] = {}
    for sample in samples:
        if not sample.error:
            pairs.setdefault(sample.decoder, []).append((known[sample.example], sample.text))
    return {name: task.corpus_scores(own) for name, own in pairs.items()}
