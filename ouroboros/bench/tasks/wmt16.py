"""WMT16 news translation, German to English (https://aclanthology.org/W16-2301)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sacrebleu.metrics import BLEU, CHRF

from ouroboros.bench.tasks.answers import answer_of
from ouroboros.bench.tasks.dataset import DatasetTask
from ouroboros.bench.tasks.task import Example


class WMT16(DatasetTask):
    """2999 sentences of German news to translate into English (test split). Free for research.

    Scored by sacreBLEU (its default signatures, 0 to 100): BLEU and chrF of each sentence, and of
    the whole corpus (the number to quote). The hub id is wmt/wmt16; `path` is a JSONL file of
    {"translation": {"de": ..., "en": ...}}.
    """

    name = "wmt16"
    licence = "research use"
    max_new = 64
    hub = ("wmt/wmt16", "de-en", "test")
    fields: ClassVar = {"translation.de": str, "translation.en": str}

    def load(self) -> list[Example]:
        """Return an example per sentence pair, with the id "wmt16/<index>"."""
        pairs = (row["translation"] for row in self.rows())
        return [self.prompt.example(f"wmt16/{i}", pair, pair) for i, pair in enumerate(pairs)]

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return "sentence_bleu" (with effective order) and "sentence_chrf", each 0 to 100."""
        text, truth = self._translation(completion), [str(example.data["en"])]
        return {
            "sentence_bleu": float(BLEU(effective_order=True).sentence_score(text, truth).score),
            "sentence_chrf": float(CHRF().sentence_score(text, truth).score),
        }

    def corpus_scores(self, pairs: Sequence[tuple[Example, str]]) -> dict[str, float]:
        """Return the corpus-level scores "bleu" and "chrf", each 0 to 100."""
        texts = [self._translation(completion) for _, completion in pairs]
        truths = [[str(example.data["en"]) for example, _ in pairs]]
        return {
            "bleu": float(BLEU().corpus_score(texts, truths).score),
            "chrf": float(CHRF().corpus_score(texts, truths).score),
        }

    def _translation(self, completion: str) -> str:
        return answer_of(completion, self.stop).strip()
