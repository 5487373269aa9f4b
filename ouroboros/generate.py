"""The library's door: one call, the text of plain decoding.

    ids = generate(model, **tokenizer(text, return_tensors="pt"), draft=draft, max_new_tokens=64)

Everything but the decoder goes through transformers' own `generate`, so each of its options means
what it means there. Invariant: what is not supported is refused by name, and what has no effect is
said.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer

from ouroboros.custom import Generated, Generation, ends_of, refuse_config
from ouroboros.decode import Drafter
from ouroboros.engine.model import CachedModel
from ouroboros.model_wrappers import check_model, turn

UNSAMPLED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
NUMBERS = ("max_new_tokens", "max_length", "repetition_penalty", *UNSAMPLED)
FIELDS = frozenset(GenerationConfig().to_dict()) - {"transformers_version"}


def generate(
    model: PreTrainedModel | CachedModel,
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None = None,
    draft: PreTrainedModel | CachedModel | None = None,
    decoder: str | Drafter = "ouroboros",
    generation_config: GenerationConfig | None = None,
    seed: int | None = None,
    logits_processor: Sequence[LogitsProcessor] = (),
    stopping_criteria: Sequence[StoppingCriteria] = (),
    prefix_allowed_tokens_fn: Callable | None = None,
    tokenizer=None,
    streamer: BaseStreamer | None = None,
    **options,
) -> torch.Tensor | Generated:
    """Return prompts and continuations, [rows, length], as plain decoding would give them.

    `input_ids` is [rows, length]; rows are decoded one after the other, and shorter ones are padded
    on the left, with zeros in `attention_mask`. The result is padded on the right. `decoder` is the
    name of a config in conf/decoder or any Drafter; `draft` is a smaller model of the family,
    without which "speculative" cannot be and "ouroboros" drafts with phrases alone.

    `options` are transformers' generation options (max_new_tokens, max_length, do_sample,
    temperature, eos_token_id, stop_strings with `tokenizer`, repetition_penalty,
    return_dict_in_generate, ...), with `generation_config` and the model's own behind them, and the
    named decoder's settings (max_nodes, pool_state, ...). With `return_dict_in_generate=True` a
    `Generated` is returned. Row i samples with `seed` + i, without a seed by torch's generator.

    The model keeps what its examination found for the next call; calls of several threads on one
    model wait for each other. Make the decoder yourself (`Ouroboros(CachedModel(draft), ...,
    pool_state="task")`) to keep its phrases between calls.

    Raises `ValueError` for what is not supported, naming it.
    """
    check_model("model", model)
    target = model if isinstance(model, CachedModel) else None
    plain: PreTrainedModel = target.model if target is not None else model  # type: ignore[assignment]
    if not isinstance(logits_processor, Sequence):
        raise ValueError("logits_processor must be a list of processors")
    given = {name: value for name, value in options.items() if value is not None}
    own = {name: given.pop(name) for name in list(given) if name in FIELDS}
    wanted = GenerationRequest(plain, generation_config, own)
    wanted.check()
    rows = rows_of(input_ids, attention_mask, wanted)
    if streamer is not None and len(rows) > 1:
        raise ValueError(f"a streamer takes one row, input_ids has {len(rows)}")
    generation = Generation(draft, decoder, given, target=target, streamer=streamer)
    criteria = [*stopping_criteria, *wanted.stop_strings(tokenizer)]
    texts, traces = [], []
    for row, prompt in enumerate(rows):
        generation.seed = None if seed is None else seed + row
        allowed = _of_row(prefix_allowed_tokens_fn, row)
        with turn(plain, generation.draft), _without_stop_strings(plain):
            made = type(plain).generate(  # type: ignore[attr-defined]
                plain,
                prompt[None],
                attention_mask=torch.ones_like(prompt[None]),
                generation_config=wanted.config(padding=input_ids.shape[-1] - len(prompt)),
                logits_processor=LogitsProcessorList(logits_processor),
                stopping_criteria=StoppingCriteriaList(criteria),
                prefix_allowed_tokens_fn=allowed,
                custom_generate=generation,
            )
        texts.append(torch.cat([input_ids[row, : -len(prompt)], made.sequences[0]]))
        traces += made.traces
    sequences = _padded(texts, _pad_id(generation.config))
    return Generated(sequences, tuple(traces)) if wanted("return_dict_in_generate") else sequences


class GenerationRequest:
    """What the caller, the given generation config and the model's own ask for, in this order."""

    def __init__(self, model: PreTrainedModel, config: GenerationConfig | None, own: dict) -> None:
        self.model, self.given, self.own = model, config, own

    def __call__(self, name: str):
        """Return an option's value, None where nobody says anything."""
        behind = (getattr(c, name, None) for c in (self.given, self.model.generation_config))
        return next((v for v in (self.own.get(name), *behind) if v is not None), None)

    def check(self) -> None:
        """Raise `ValueError` for values that cannot be; warn of those without effect."""
        for name in NUMBERS:
            if isinstance(value := self(name), str):
                raise ValueError(f"{name}={value!r} is text: give a number")
        length, heat = self("max_new_tokens"), self("temperature")
        if length is not None and length < 1:
            raise ValueError(f"max_new_tokens is {length}; it must be 1 or more")
        if self("do_sample"):
            if heat is not None and heat <= 0:
                raise ValueError(f"temperature {heat} must be above 0; use do_sample=False")
        else:
            idle = [n for n, plain in UNSAMPLED.items() if self.own.pop(n, plain) != plain]
            if idle:
                text = f"{', '.join(idle)}: no effect without do_sample=True"
                warnings.warn(text, stacklevel=3)
        refuse_config(GenerationConfig(**self.own))

    def stop_strings(self, tokenizer) -> list[StoppingCriteria]:
        """Return the criterion of the stop strings, if there are any."""
        strings = self("stop_strings")
        if strings is None:
            return []
        if tokenizer is None:
            raise ValueError(f"stop_strings={strings!r} need tokenizer=, the model's own")
        return [StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)]

    def config(self, *, padding: int) -> GenerationConfig:
        """Return the config of one row, whose lengths do not count its `padding` tokens."""
        config = copy.deepcopy(self.given) or GenerationConfig()
        config.update(**self.own)
        config.stop_strings = None
        config.return_dict_in_generate = True
        for name in ("max_length", "min_length"):
            value = self(name)
            if padding and value is not None:
                setattr(config, name, max(0, value - padding))
        return config


def rows_of(
    ids: torch.Tensor, mask: torch.Tensor | None, wanted: GenerationRequest
) -> list[torch.Tensor]:
    """Return the prompts, [length] each, without the padding on their left.

    Raises `ValueError` for anything but ids and mask of one shape [rows, length], and for padding
    elsewhere.
    """
    if not isinstance(ids, torch.Tensor):
        raise ValueError(f"input_ids is a {type(ids).__name__}: give the tokenizer's tensor")
    if ids.ndim != 2 or not ids.numel():
        raise ValueError(f"input_ids has shape {list(ids.shape)}; [rows, length] is needed")
    if mask is None:
        pad = wanted("pad_token_id")
        unclear = pad is not None and pad not in ends_of(wanted("eos_token_id"))
        if len(ids) > 1 and unclear and bool((ids == pad).any()):
            raise ValueError("these rows hold the pad token: give the tokenizer's attention_mask")
        return list(ids)
    if mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask has shape {list(mask.shape)}, input_ids {list(ids.shape)}: give both "
            "as the tokenizer made them"
        )
    lengths = mask.bool().sum(-1).tolist()
    for row, length in zip(mask.bool(), lengths, strict=True):
        if not length or not bool(row[-length:].all()):
            raise ValueError(
                "attention_mask: a row must be padded on its left only, and not be empty: use "
                'padding_side="left"'
            )
    return [row[-length:] for row, length in zip(ids, lengths, strict=True)]


def _of_row(allowed: Callable | None, row: int) -> Callable | None:
    """Each row is a batch of its own to transformers: name it by its place in the caller's."""
    return None if allowed is None else lambda _, ids: allowed(row, ids)


@contextmanager
def _without_stop_strings(model: PreTrainedModel) -> Iterator[None]:
    """Keep the model's own stop strings, which need a tokenizer, from transformers: it hands none
    on to a callable, and their criterion is among those given."""
    config = model.generation_config
    strings = getattr(config, "stop_strings", None)
    config.stop_strings = None
    try:
        yield
    finally:
        config.stop_strings = strings


def _pad_id(config: GenerationConfig) -> int:
    ends = sorted(ends_of(config.eos_token_id))
    pad = config.pad_token_id
    return int(pad) if pad is not None else ends[0] if ends else 0


def _padded(texts: list[torch.Tensor], pad: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)
