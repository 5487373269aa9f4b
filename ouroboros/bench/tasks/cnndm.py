"""CNN/DailyMail (Hermann et al. 2015; See et al. 2017, https://arxiv.org/abs/1704.04368)."""

from __future__ import annotations

from collections.abc import Sequence

from rouge_score.rouge_scorer import RougeScorer

from ouroboros.bench.task import Example
from ouroboros.bench.tasks.completion import before_stop
from ouroboros.bench.tasks.source import Hub, Source
from ouroboros.bench.template import Template, choose_template

LINE = "Please summarize the following document within one sentence"
TEMPLATES = {
    "plain": Template("Document: {article}\nSummary:", ("\n\n", "\nDocument:")),
    "chat": Template(LINE + " and do not output anything more.\n\n{article}", chat=True),
    "paper-yi": Template(LINE + ". Document: {article}  Summary: "),
    "paper-llama2": Template(
        "[INST] " + LINE + " and do not output anything more. Document: {article}  Summary: [/INST]"
    ),
}
KINDS = ("rouge1", "rouge2", "rougeL")


class CNNDM:
    """11490 news articles to summarise (version 3.0.0, test). Apache-2.0, the texts their owners'.

    Scored: ROUGE-1, ROUGE-2 and ROUGE-L (F-measure, stemmed, `rouge-score`) against the highlights.
    The hub id is abisee/cnn_dailymail; `path` is a JSONL file with its fields "article",
    "highlights" and "id".
    """

    name = "cnndm"
    licence = "Apache-2.0"
    max_new = 128

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        template: str = "plain",
        stop: Sequence[str] | None = None,
    ) -> None:
        hub = Hub("abisee/cnn_dailymail", "3.0.0", "test", revision)
        fields = {"article": str, "highlights": str, "id": str}
        self.source = Source(self.name, path, hub, fields)
        self.version = self.source.version
        self.template = choose_template(TEMPLATES, template)
        self.stop = self.template.stops(stop)
        self._rouge = RougeScorer(KINDS, use_stemmer=True)

    def load(self) -> list[Example]:
        """Return the articles."""
        return [
            self.template.example(f"cnndm/{row['id']}", {"article": row["article"]}, row)
            for row in self.source.load()
        ]

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return the F-measures, each from 0 to 1."""
        summary = before_stop(completion, self.stop).strip()
        found = self._rouge.score(str(example.data["highlights"]), summary)
        return {kind: float(found[kind].fmeasure) for kind in KINDS}
