"""Prompt lookup (Saxena 2023): draft the tokens that followed an earlier copy of the last n-gram.

https://github.com/apoorvumang/prompt-lookup-decoding
"""

from __future__ import annotations

from collections.abc import Sequence

from ouroboros.core.select import TokenSelector
from ouroboros.core.tree import TokenTree
from ouroboros.drafters.pool import check_range


class PromptLookup:
    """Drafts the `num_tokens` tokens after the most recent earlier occurrence of the longest
    matching n-gram, which has at most `max_ngram_size` tokens.

    A draft that reaches the end of the text continues with its own tokens, so a loop in the text is
    drafted several times over. N-grams are indexed, so step times do not grow with the text.

    `adaptive`: the first draft of a prompt has `least` tokens. After a fully accepted draft the
    next one is twice as long, up to `num_tokens`; after any other draft it is `least` tokens longer
    than the accepted part.
    """

    def __init__(
        self, *, max_ngram_size: int, num_tokens: int, adaptive: bool = False, least: int = 2
    ) -> None:
        check_range(1, max_ngram_size=max_ngram_size, num_tokens=num_tokens, least=least)
        self.max_ngram_size = max_ngram_size
        self.num_tokens = num_tokens
        self.adaptive, self.least = adaptive, least
        self._length = num_tokens
        self._places: dict[tuple[int, ...], int] = {}  # the position after each n-gram
        self._seen = 0

    def reset(self, choose: TokenSelector) -> None:
        """Clear the index and reset the draft length."""
        self._places = {}
        self._seen = 0
        self._length = min(self.least, self.num_tokens) if self.adaptive else self.num_tokens

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the continuation of the longest earlier match as a chain, or the root alone."""
        for end in range(max(1, self._seen), len(tokens)):  # index n-grams before the last token
            for n in range(1, min(self.max_ngram_size, end) + 1):
                self._places[tuple(tokens[end - n : end])] = end
        self._seen = len(tokens)
        length = min(self._length, budget - 1)
        for n in range(min(self.max_ngram_size, len(tokens) - 1), 0, -1):
            place = self._places.get(tuple(tokens[-n:]))
            if place is not None:
                period = len(tokens) - place
                drafted = [tokens[place + ahead % period] for ahead in range(length)]
                return TokenTree.chain(tokens[-1], drafted, source="prompt")
        return TokenTree.chain(tokens[-1], ())

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Adapt the draft length, if `adaptive` and there was a draft."""
        if self.adaptive and len(tree) > 1:
            whole = len(path) == len(tree)
            wanted = 2 * (len(path) - 1) if whole else len(path) - 1 + self.least
            self._length = min(self.num_tokens, wanted)
