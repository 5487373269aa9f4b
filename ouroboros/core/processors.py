"""Logits processors on trees, such as a repetition penalty.

Each node's row of logits is processed with the tokens up to that node, so a tree gives the tokens
of standard decoding. Invariant: a processor is a function of (tokens, row). A processor that may
keep state between calls raises an error, because it would also see rejected branches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process

from ouroboros.core.select import (
    Ranked,
    Sampler,
    TokenSelector,
    all_ids,
    combined_temperature,
    widened,
)
from ouroboros.core.tree import TokenTree

PURE = frozenset(
    getattr(logits_process, name, None)
    for name in (
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
    )
)
"""transformers' processors that keep no state: functions of (tokens, row)."""


class Processed(TokenSelector):
    """Selector that applies logits processors, then lets `choose` (`argmax` or a `Sampler`) select.

    - A sampler's warpers apply after the processors.
    - `vocab`: the target's vocabulary size; logits of a draft with a smaller vocabulary are padded
      to it for the processors
    - `padding`, `row`: in a batch, the left padding and the row number that processors see
    - `copies`: rows per prompt (`num_return_sequences`); `encoder_*` processors number prompts
    - `eos`, `prompt_len`: no `prefix_allowed_tokens_fn` is called after an end token in the output

    A custom processor must set `reads_text_only = True`. Raises `ValueError` with the name of a
    processor that may keep state.
    """

    def __init__(
        self,
        choose: TokenSelector,
        processors: Sequence[LogitsProcessor],
        *,
        vocab: int,
        padding: Sequence[int] = (),
        row: int = 0,
        copies: int = 1,
        eos: Collection[int] = (),
        prompt_len: int = 0,
    ) -> None:
        for processor in processors:
            kind = type(processor)
            if kind not in PURE and not getattr(processor, "reads_text_only", False):
                raise ValueError(
                    f"the logits processor {kind.__name__} is not supported: it may keep state, "
                    "which rejected branches would change; remove it or, if its result depends "
                    "only on the text and the row, set its attribute reads_text_only = True"
                )
        if isinstance(choose, Sampler):
            processors, choose = [*processors, *choose.warpers], Sampler(seed=choose.seed)
        self.choose = choose
        limits = row // copies, frozenset(eos), len(padding) + prompt_len
        self.processors = LogitsProcessorList([_of_row(p, row, *limits) for p in processors])
        inner = (p.processor if isinstance(p, OneRow) else p for p in self.processors)
        functions = (vars(p).get("_prefix_allowed_tokens_fn") for p in inner)
        self._constraints = [own for own in functions if isinstance(own, Constraint)]
        self._encoder = [own for own in self.processors if "encoder_input_ids" in vars(own)]
        self.vocab = vocab
        self.padding = padding
        self.temperature = choose.temperature * combined_temperature(processors)
        self.noise_seed = choose.noise_seed

    def processed(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Return the processed logits of each logit node, [nodes, vocab], in float32 as in
        transformers (float64 stays float64)."""
        logits = all_ids(logits)
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
            constraint.decoded = len(text)
        for among in by_depth.values():
            paths = [tree.path_to(tree.logit_nodes[row])[1:] for row in among]
            texts = [[*text, *(tree.tokens[node] for node in path)] for path in paths]
            ids = torch.tensor(texts, device=rows.device)
            for own in self._encoder:  # transformers 5.17 processes as many rows as these have
                own.encoder_input_ids = own.encoder_input_ids[:1].expand(len(among), -1)
            out[among] = self.processors(ids, rows[among])  # type: ignore[arg-type]
        return out[:, :width]

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Process the logits, then return the scores that `choose` gives them."""
        return self.choose.scores(self.processed(logits, tokens, tree), tokens, tree)

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        return self.choose(self.processed(logits, tokens, tree), tokens, tree)

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        return self.choose.ranked(self.processed(logits, tokens, tree), tokens, tree, count)


class Constraint:
    """A `prefix_allowed_tokens_fn` for one row of a batch. It may fail for drafted texts that
    decoding cannot reach, because of a token that it forbids or an end token: [0] follows them."""

    def __init__(self, allowed: Callable, row: int, eos: frozenset[int], prompt_len: int) -> None:
        self.allowed, self.row, self.eos, self.prompt_len = allowed, row, eos, prompt_len
        self.decoded = 0  # tokens of the text before the drafted ones

    def __call__(self, batch: int, ids: torch.Tensor) -> Sequence[int]:
        """Return the allowed next ids after `ids`."""
        if not self.eos.isdisjoint(ids[self.prompt_len :].tolist()):
            return [0]
        if len(ids) <= self.decoded:
            return self.allowed(self.row, ids)
        try:
            return list(self.allowed(self.row, ids)) or [0]
        except Exception:  # of the caller's function
            return [0]


class OneRow(LogitsProcessor):
    """A processor of your own. It is called with one row at a time, as for a single sequence,
    because it may read the text of the first row only."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self.processor = processor

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:  # type: ignore[override]
        pairs = zip(input_ids.split(1), scores.split(1), strict=True)
        return torch.cat([self.processor(*pair) for pair in pairs])  # type: ignore[arg-type]


def _of_row(
    processor: LogitsProcessor, row: int, prompt: int, eos: frozenset[int], prompt_len: int
) -> LogitsProcessor:
    """Return a copy of `processor` that takes one row and treats it as row `row` of the batch, a
    continuation of prompt number `prompt`."""
    known, single = vars(processor), copy.copy(processor)
    if (allowed := known.get("_prefix_allowed_tokens_fn")) is not None:
        vars(single)["_prefix_allowed_tokens_fn"] = Constraint(allowed, row, eos, prompt_len)
    if isinstance(ignored := known.get("prompt_ignore_length"), torch.Tensor):
        vars(single)["prompt_ignore_length"] = int(ignored[row])
    for name in ("encoder_input_ids", "generated_ngrams"):
        if name in known:
            vars(single).update({name: known[name][prompt : prompt + 1], "batch_size": 1})
    return single if type(processor) in PURE else OneRow(single)
