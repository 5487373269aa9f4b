"""CNN/DailyMail (Hermann et al. 2015; See et al. 2017, https://arxiv.org/abs/1704.04368)."""

from __future__ import annotations

from typing import ClassVar

from rouge_score.rouge_scorer import RougeScorer

from ouroboros.bench.tasks.dataset import DatasetTask, before_stop
from ouroboros.bench.tasks.task import Example

KINDS = ("rouge1", "rouge2", "rougeL")


class CNNDM(DatasetTask):
    """11490 news articles to summarise (3.0.0, test split). Apache-2.0, but not the articles.

    Scored: ROUGE-1, ROUGE-2 and ROUGE-L (F-measure, stemmed, `rouge-score`) against the highlights.
    The hub id is abisee/cnn_dailymail; `path` is a JSONL file with its fields "article",
    "highlights" and "id".
    """

    name = "cnndm"
    licence = "Apache-2.0"
    max_new = 128
    hub = ("abisee/cnn_dailymail", "3.0.0", "test")
    fields: ClassVar = {"article": str, "highlights": str, "id": str}

    def load(self) -> list[Example]:
        """Return an example per article, with the id "cnndm/<id>"."""
        return [self.prompt.example(f"cnndm/{row['id']}", row, row) for row in self.rows()]

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return the F-measures "rouge1", "rouge2" and "rougeL", each from 0 to 1."""
        summary = before_stop(completion, self.stop).strip()
        found = RougeScorer(KINDS, use_stemmer=True).score(str(example.data["highlights"]), summary)
        return {kind: float(found[kind].fmeasure) for kind in KINDS}
