"""The library's main function: generate text losslessly in one call.

    ids = generate(model, **tokenizer(text, return_tensors="pt"), draft=draft, max_new_tokens=64)

All but the decoding loop is transformers' own `generate`, so its options keep their meaning.
Invariant: an unsupported option is an error that names it, and one without effect is a warning.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

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

from ouroboros.custom import Generated, Generation, check_supported, ids_of
from ouroboros.decode import Drafter
from ouroboros.engine.model import CachedModel
from ouroboros.model_wrappers import Model, check_model, locked

UNSAMPLED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
NUMBERS = ("max_new_tokens", "max_length", "repetition_penalty", *UNSAMPLED)
FIELDS = frozenset(GenerationConfig().to_dict()) - {"transformers_version"}


def generate(
    model: Model,
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None = None,
    draft: Model | None = None,
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
    """Return prompts and continuations, [rows, length]: exactly the tokens of standard decoding.

    `input_ids` is [rows, length]; rows are decoded one after the other. Shorter rows are padded on
    the left, with zeros in `attention_mask`; the result is padded on the right. `decoder` is a name
    in conf/decoder or any Drafter. `draft` is a smaller model of the same family: "speculative"
    needs one, and without one "ouroboros" drafts with phrases alone.

    `options` are transformers' generation options (max_new_tokens, max_length, do_sample,
    temperature, eos_token_id, stop_strings with `tokenizer`, repetition_penalty,
    return_dict_in_generate, ...) and the named decoder's settings (max_nodes, pool_state, ...).
    Options override `generation_config`, and that the model's own. With
    `return_dict_in_generate=True` a `Generated` is returned. Row i samples with `seed` + i, without
    a seed by torch's generator.

    The model's wrapper is cached on it for the next call, and threads that use one model take
    turns. To keep phrases between calls, make the decoder yourself:
    `Ouroboros(CachedModel(draft), pool_state="task")`.

    Raises `ValueError` naming the option that is not supported.
    """
    check_model("model", model)
    target = model if isinstance(model, CachedModel) else None
    plain: PreTrainedModel = target.model if target is not None else model  # type: ignore[assignment]
    if not isinstance(logits_processor, Sequence):
        raise ValueError("logits_processor must be a list of processors")
    given = {name: value for name, value in options.items() if value is not None}
    own = {name: given.pop(name) for name in list(given) if name in FIELDS}
    request = GenerationRequest(plain, generation_config, own)
    request.check()
    rows = rows_of(input_ids, attention_mask, request)
    if streamer is not None and len(rows) > 1:
        raise ValueError(f"a streamer takes one row, input_ids has {len(rows)}")
    generation = Generation(draft, decoder, given, target=target, streamer=streamer)
    criteria = [*stopping_criteria, *request.stop_strings(tokenizer)]
    texts, traces = [], []
    for row, prompt in enumerate(rows):
        generation.seed = None if seed is None else seed + row
        allowed = None
        if prefix_allowed_tokens_fn is not None:  # transformers counts each row as row 0
            allowed = partial(_for_row, prefix_allowed_tokens_fn, row)
        with locked(plain, generation.draft), _without_stop_strings(plain):
            generated = type(plain).generate(  # type: ignore[attr-defined]
                plain,
                prompt[None],
                attention_mask=torch.ones_like(prompt[None]),
                generation_config=request.config(padding=input_ids.shape[-1] - len(prompt)),
                logits_processor=LogitsProcessorList(logits_processor),
                stopping_criteria=StoppingCriteriaList(criteria),
                prefix_allowed_tokens_fn=allowed,
                custom_generate=generation,
            )
        texts.append(torch.cat([input_ids[row, : -len(prompt)], generated.sequences[0]]))
        traces += generated.traces
    ends, pad = sorted(ids_of(generation.config.eos_token_id)), generation.config.pad_token_id
    padding = int(pad) if pad is not None else ends[0] if ends else 0
    sequences = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=padding)
    return Generated(sequences, tuple(traces)) if request("return_dict_in_generate") else sequences


class GenerationRequest:
    """Generation options: the caller's, then those of `generation_config`, then the model's own."""

    def __init__(self, model: PreTrainedModel, config: GenerationConfig | None, own: dict) -> None:
        self.model, self.given, self.own = model, config, own

    def __call__(self, name: str):
        """Return an option's value, None where it is not set."""
        defaults = (getattr(c, name, None) for c in (self.given, self.model.generation_config))
        return next((v for v in (self.own.get(name), *defaults) if v is not None), None)

    def check(self) -> None:
        """Raise `ValueError` for impossible values; warn of options without effect."""
        for name in NUMBERS:
            if isinstance(value := self(name), str):
                raise ValueError(f"{name}={value!r} is text: give a number")
        length, temperature = self("max_new_tokens"), self("temperature")
        if length is not None and length < 1:
            raise ValueError(f"max_new_tokens is {length}; it must be 1 or more")
        if self("do_sample"):
            if temperature is not None and temperature <= 0:
                raise ValueError(f"temperature {temperature} must be above 0; use do_sample=False")
        else:
            idle = [n for n, plain in UNSAMPLED.items() if self.own.pop(n, plain) != plain]
            if idle:
                text = f"{', '.join(idle)}: no effect without do_sample=True"
                warnings.warn(text, stacklevel=3)
        check_supported(GenerationConfig(**self.own))

    def stop_strings(self, tokenizer) -> list[StoppingCriteria]:
        """Return the stopping criterion of the stop strings, [] without any."""
        strings = self("stop_strings")
        if strings is None:
            return []
        if tokenizer is None:
            raise ValueError(f"stop_strings={strings!r} need tokenizer=, the model's own")
        return [StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)]

    def config(self, *, padding: int) -> GenerationConfig:
        """Return the config of one row; its lengths do not count `padding` tokens."""
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
    ids: torch.Tensor, mask: torch.Tensor | None, request: GenerationRequest
) -> list[torch.Tensor]:
    """Return the prompts, [length] each, without the padding on their left.

    Raises `ValueError` unless ids and mask have one shape [rows, length] and all padding is left.
    """
    if not isinstance(ids, torch.Tensor):
        raise ValueError(f"input_ids is a {type(ids).__name__}: give the tokenizer's tensor")
    if ids.ndim != 2 or not ids.numel():
        raise ValueError(f"input_ids has shape {list(ids.shape)}; [rows, length] is needed")
    if mask is None:
        pad = request("pad_token_id")
        unclear = pad is not None and pad not in ids_of(request("eos_token_id"))
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


def _for_row(allowed: Callable, row: int, batch: int, ids: torch.Tensor) -> list[int]:
    """Call the caller's function with the row's index in the caller's batch."""
    return allowed(row, ids)


@contextmanager
def _without_stop_strings(model: PreTrainedModel) -> Iterator[None]:
    """Hide the model's own stop strings from transformers: it would need a tokenizer for them, and
    passes none to a callable. Their criterion is among those passed."""
    config = model.generation_config
    strings = getattr(config, "stop_strings", None)
    config.stop_strings = None
    try:
        yield
    finally:
        config.stop_strings = strings
