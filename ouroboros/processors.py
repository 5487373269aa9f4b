"""Logits processors that read the text before a token, such as a repetition penalty, on trees.

Each node's row is processed with the path to it as the text, so a tree gives the tokens of standard
decoding. Invariant: a processor is a function of (text, row) alone; one that keeps state between
calls would see rejected branches, and is an error that names it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ouroboros.select import Ranked, Sampler, TokenSelector, combined_temperature, widened
from ouroboros.tree import TokenTree

PURE = frozenset(
    [
        *("RepetitionPenaltyLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor"),
        *("NoRepeatNGramLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor"),
        *("NoBadWordsLogitsProcessor", "SequenceBiasLogitsProcessor", "LogitNormalization"),
        *("PrefixConstrainedLogitsProcessor", "InfNanRemoveLogitsProcessor"),
        *("SuppressTokensLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor"),
        *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
        *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
        *("ExponentialDecayLengthPenalty", "TemperatureLogitsWarper", "TopKLogitsWarper"),
        *("TopPLogitsWarper", "TopHLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper"),
        *("EpsilonLogitsWarper", "EtaLogitsWarper"),
    ]
)
"""transformers' processors whose result depends on text and row alone."""


class Processed(TokenSelector):
    """Selects tokens from processed logits, as `choose` (`argmax` or a `Sampler`) does.

    A sampler's warpers come after the processors. `vocab` is the target's vocabulary; a narrower
    draft's rows are widened to it for the processors. Those of a batch work as on its row `row`,
    whose text they see with `padding` before it. Your own processor declares
    `reads_text_only = True`.

    Raises `ValueError` naming a processor that may keep state.
    """

    def __init__(
        self,
        choose: TokenSelector,
        processors: Sequence[LogitsProcessor],
        *,
        vocab: int,
        padding: Sequence[int] = (),
        row: int = 0,
    ) -> None:
        for processor in processors:
            name = type(processor).__name__
            if name not in PURE and not getattr(processor, "reads_text_only", False):
                raise ValueError(
                    f"the logits processor {name} is not supported: it may keep a state that "
                    "rejected branches would spoil; remove it, or, if its result depends on "
                    "nothing but the text and the row, set its attribute reads_text_only = True"
                )
        if isinstance(choose, Sampler):
            processors, choose = [*processors, *choose.warpers], Sampler(seed=choose.seed)
        self.choose = choose
        self.processors = LogitsProcessorList([_of_row(p, row) for p in processors])
        functions = (vars(p).get("_prefix_allowed_tokens_fn") for p in self.processors)
        self._constraints = [own for own in functions if isinstance(own, Constraint)]
        self.vocab = vocab
        self.padding = padding
        self.temperature = choose.temperature * combined_temperature(processors)
        self.noise_seed = choose.noise_seed

    def processed(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Return the row of each of `tree.logit_nodes` after the processors, [nodes, width].

        In float32, as transformers processes them; float64 stays.
        """
        rows, width = widened(logits), logits.shape[-1]
        if width < self.vocab:
            lowest = torch.finfo(rows.dtype).min
            rows = torch.nn.functional.pad(rows, (0, self.vocab - width), value=lowest)
        depths, out = tree.depths(), torch.empty_like(rows)
        by_depth: dict[int, list[int]] = {}
        for row, node in enumerate(tree.logit_nodes):
            by_depth.setdefault(int(depths[node]), []).append(row)
        text = [*self.padding, *tokens]
        for constraint in self._constraints:
            constraint.start(len(text))
        for among in by_depth.values():
            paths = [tree.path_to(tree.logit_nodes[row])[1:] for row in among]
            texts = [[*text, *(tree.tokens[node] for node in path)] for path in paths]
            ids = torch.tensor(texts, device=rows.device)
            out[among] = self.processors(ids, rows[among])  # type: ignore[arg-type]
        return out[:, :width]

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Return the selector's scores of the processed logits."""
        return self.choose.scores(self.processed(logits, tokens, tree), tokens, tree)

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        return self.choose(self.processed(logits, tokens, tree), tokens, tree)

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        return self.choose.ranked(self.processed(logits, tokens, tree), tokens, tree, count)


class Constraint:
    """A `prefix_allowed_tokens_fn` for one row of a batch. It is not called on texts that it
    forbids: a draft may contain them, and the function may fail on them."""

    def __init__(self, allowed: Callable, row: int) -> None:
        self.allowed, self.row = allowed, row

    def start(self, length: int) -> None:
        """Take the first `length` tokens of the texts to come as decoded."""
        self.length = length
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, batch: int, ids: torch.Tensor) -> Sequence[int]:
        """Return the ids allowed next; id 0 after a text that is forbidden."""
        text = tuple(ids.tolist())
        for end in range(self.length, len(text) + 1):
            if text[:end] not in self.answers:
                self.answers[text[:end]] = list(self.allowed(self.row, ids[:end]))
            if end < len(text) and text[end] not in self.answers[text[:end]]:
                return [0]
        return self.answers[text]


def _of_row(processor: LogitsProcessor, row: int) -> LogitsProcessor:
    """Return a processor of a batch as one of its row alone."""
    known, own = vars(processor), copy.copy(processor)
    if (allowed := known.get("_prefix_allowed_tokens_fn")) is not None:
        vars(own)["_prefix_allowed_tokens_fn"] = Constraint(allowed, row)
    if isinstance(ignored := known.get("prompt_ignore_length"), torch.Tensor):
        vars(own)["prompt_ignore_length"] = int(ignored[row])
    for name in ("encoder_input_ids", "generated_ngrams"):
        if name in known:
            vars(own).update({name: known[name][row : row + 1], "batch_size": 1})
    return own
