"""CNN/DailyMail (Hermann et al. 2015; See et al. 2017, https://arxiv.org/abs/1704.04368)."""

from __future__ import annotations

from typing import ClassVar

from rouge_score.rouge_scorer import RougeScorer

from ouroboros.bench.tasks.answers import answer_of
from ouroboros.bench.tasks.dataset import DatasetTask
from ouroboros.bench.tasks.task import Example

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class CNNDM(DatasetTask):
    """11490 news articles to summarise (3.0.0, test split). Apache-2.0, but not the articles.

    Scored: ROUGE-1, ROUGE-2 and ROUGE-L (F-measure, stemmed, `rouge-score`) against the highlights.
    "rougeL" takes the summary as one sentence; "rougeLsum", the ROUGE-L that papers report, takes
    each line as a sentence: compare it only between models that break lines alike. The hub id is
    abisee/cnn_dailymail; `path` is a JSONL file with its fields "article", "highlights" and "id".
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
        """Return the F-measures "rouge1", "rouge2", "rougeL" and "rougeLsum", each from 0 to 1."""
        summary = answer_of(completion, self.stop).strip()
        found = RougeScorer(KINDS, use_stemmer=True).score(str(example.data["highlights"]), summary)
        return {kind: float(found[kind].fmeasure) for kind in KINDS}
