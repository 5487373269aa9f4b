"""The library's main functions: lossless decoding in one call, or inside transformers' own.

    ids = generate(model, **tokenizer(text, return_tensors="pt"), draft=draft, max_new_tokens=64)
    ids = model.generate(ids, custom_generate=custom_generate(draft=draft), max_new_tokens=64)

All but the decoding loop is transformers' own `generate`: it prepares the config, the logits
processors and the stopping criteria, so its options keep their meaning. Invariant: an option that a
token tree cannot support is an error that names it, and one without effect is a warning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.utils import ModelOutput

from ouroboros.decode import Drafter, stream
from ouroboros.decoders import decoder_names, decoder_settings, make_decoder, needs_draft
from ouroboros.engine.model import CachedModel
from ouroboros.instantiate import unknown
from ouroboros.model_wrappers import Model, acquire, locked, plain_model
from ouroboros.processors import Processed
from ouroboros.select import Sampler, TokenSelector, argmax
from ouroboros.trace import DecodeTrace, cut
from ouroboros.vocab import check_pair

FIELDS = frozenset(GenerationConfig().to_dict()) - {"transformers_version"}
UNSUPPORTED: dict[str, tuple] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "num_beam_groups"), (1,)),
    **{f"output_{name}": (False,) for name in ("scores", "logits", "attentions", "hidden_states")},
    **dict.fromkeys(("penalty_alpha", "constraints", "force_words_ids", "dola_layers"), ()),
    "prompt_lookup_num_tokens": (),
    "guidance_scale": (1, 1.0),
    "token_healing": (False,),
    "cache_implementation": ("dynamic",),
}
"""Options that a token tree cannot support, and the values, besides None, that switch them off."""
WARPERS = {"TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"}
"""Processors that a `Sampler` applies to all rows at once: they do not read the text."""
IGNORED = frozenset(["use_cache", "logits_to_keep", "tokenizer", "synced_gpus"])
"""Arguments that transformers adds to every call; they do not change the text."""


@dataclass
class Generated(ModelOutput):
    """The result with `return_dict_in_generate=True`: `sequences` [rows, length] as standard
    generation returns them, and a `DecodeTrace` of each row, unpadded."""

    sequences: torch.Tensor | None = None
    traces: tuple[DecodeTrace, ...] | None = None

    @property
    def calls(self) -> int:
        """Target calls, one a step."""
        return sum(len(trace.steps) for trace in self.traces or ())

    @property
    def draft_calls(self) -> int:
        """Draft calls."""
        return sum(step.draft_calls for trace in self.traces or () for step in trace.steps)

    @property
    def accepted(self) -> int:
        """Accepted draft tokens."""
        return sum(step.accepted for trace in self.traces or () for step in trace.steps)


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
    plain = plain_model("model", model)
    if not isinstance(logits_processor, Sequence):
        raise ValueError("logits_processor must be a list of processors")
    settings = {name: value for name, value in options.items() if value is not None}
    own = {name: settings.pop(name) for name in list(settings) if name in FIELDS}
    config = copy.deepcopy(generation_config) or GenerationConfig()
    for name in ("max_new_tokens", "max_length"):
        value = own.get(name, getattr(config, name))
        if not isinstance(value, int | None):
            raise ValueError(f"{name}={value!r} is a {type(value).__name__}: give a whole number")
    config.update(**own)
    _check_supported(config)

    def option(name: str):
        """Return an option of this call, or else of the model."""
        values = (getattr(own, name, None) for own in (config, plain.generation_config))
        return next((value for value in values if value is not None), None)

    criteria = list(stopping_criteria)
    if (strings := option("stop_strings")) is not None:
        if tokenizer is None:
            raise ValueError(f"stop_strings={strings!r} need tokenizer=, the model's own")
        criteria.append(StopStringCriteria(stop_strings=strings, tokenizer=tokenizer))
    pad, ends = option("pad_token_id"), sorted(_ids_of(option("eos_token_id")))
    rows = _rows_of(input_ids, attention_mask, None if pad in ends else pad)
    if streamer is not None and len(rows) > 1:
        raise ValueError(f"a streamer takes one row, input_ids has {len(rows)}")
    as_dict = option("return_dict_in_generate")
    config.stop_strings, config.return_dict_in_generate = None, True
    target = model if isinstance(model, CachedModel) else None
    generation = Generation(draft, decoder, settings, streamer, target=target)
    texts, traces = [], []
    for row, prompt in enumerate(rows):
        generation.seed = None if seed is None else seed + row
        allowed = None
        if prefix_allowed_tokens_fn is not None:  # transformers counts each row as row 0
            allowed = lambda _, ids, row=row: prefix_allowed_tokens_fn(row, ids)  # noqa: E731
        own_config, padding = copy.deepcopy(config), input_ids.shape[-1] - len(prompt)
        for name in ("max_length", "min_length"):  # they do not count the padding
            if padding and (value := option(name)) is not None:
                setattr(own_config, name, max(0, value - padding))
        with locked(plain, generation.draft), _without_stop_strings(plain):
            generated = type(plain).generate(  # type: ignore[attr-defined]
                plain,
                prompt[None],
                attention_mask=torch.ones_like(prompt[None]),
                generation_config=own_config,
                logits_processor=LogitsProcessorList(logits_processor),
                stopping_criteria=StoppingCriteriaList(criteria),
                prefix_allowed_tokens_fn=allowed,
                custom_generate=generation,
            )
        texts.append(torch.cat([input_ids[row, :padding], generated.sequences[0]]))
        traces += generated.traces
    filler = int(pad) if pad is not None else ends[0] if ends else 0
    sequences = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=filler)
    return Generated(sequences, tuple(traces)) if as_dict else sequences


def custom_generate(
    *,
    draft: Model | None = None,
    decoder: str | Drafter = "ouroboros",
    streamer: BaseStreamer | None = None,
    seed: int | None = None,
    **settings,
) -> Callable[..., torch.Tensor | Generated]:
    """Return a callable for `model.generate(..., custom_generate=...)`.

    The generation config sets lengths, end-of-sequence ids and sampling; without `seed`, torch's
    global generator is used. Pass the streamer here, not to `model.generate`, which does not pass
    it on to a callable. One decoder serves all calls with one model: with `pool_state="task"` its
    phrase pool is kept from prompt to prompt. `decoder` and `settings` as for `generate`.
    """
    return Generation(draft, decoder, settings, streamer, seed)


@dataclass(eq=False)
class Generation:
    """The callable that transformers calls with a model, a prompt and its prepared arguments."""

    draft: Model | None
    decoder: str | Drafter
    settings: dict
    streamer: BaseStreamer | None = None
    seed: int | None = None
    target: CachedModel | None = None
    _made: tuple[CachedModel, CachedModel | None, Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        decoder, settings = self.decoder, self.settings
        if self.draft is not None:
            plain_model("draft", self.draft)
        if not isinstance(decoder, str):
            if settings:
                names = ", ".join(settings)
                raise ValueError(f"{names}: give these to the decoder you made yourself")
            self.draft = getattr(decoder, "draft", None)
        elif decoder not in decoder_names():
            names = unknown(decoder, decoder_names())
            raise ValueError(f"there is no decoder {names}, or pass a Drafter")
        elif strange := [name for name in settings if name not in decoder_settings(decoder)]:
            names = unknown(strange[0], decoder_settings(decoder), FIELDS)
            raise ValueError(f"generate with decoder={decoder!r} has no option {names}")
        elif not needs_draft(decoder):
            self.draft = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Sequence = (),
        stopping_criteria: Sequence = (),
        generation_config: GenerationConfig | None = None,
        **model_kwargs,
    ) -> torch.Tensor | Generated:
        config = generation_config or model.generation_config
        _check_supported(config)
        if len(input_ids) != 1:
            raise ValueError(
                f"input_ids has shape {list(input_ids.shape)}; [1, length] is needed: batches are "
                "not supported by a callable; ouroboros.generate takes them row by row"
            )
        _check_inputs(model_kwargs)
        seed = self.seed
        if config.do_sample and seed is None:
            seed = int(torch.randint(1 << 62, ()))
        length_or_end = (MaxLengthCriteria, EosTokenCriteria)
        criteria = [c for c in stopping_criteria if not isinstance(c, length_or_end)]
        prompt, streamer = input_ids[0].tolist(), self.streamer
        with acquire(self.target or model, self.draft) as (target, draft):
            choose = token_selector(config, seed, logits_processor, target.vocab_size)
            drafter = self._decoder(target, draft)
            max_new, eos = config.max_length - len(prompt), _ids_of(config.eos_token_id)
            sent, ended = len(prompt), None
            if streamer is not None:
                streamer.put(input_ids.cpu())
            for trace in stream(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose):
                if criteria:
                    ids = torch.tensor([trace.tokens], device=input_ids.device)
                    for length in range(sent + 1, len(trace.tokens) + 1):
                        if any(bool(c(ids[:, :length], None).all()) for c in criteria):
                            ended, trace = length, cut(trace, length - len(prompt))
                            break
                if streamer is not None:
                    for token in trace.tokens[sent:]:
                        streamer.put(torch.tensor([token]))
                sent = len(trace.tokens)
                if ended:
                    break
            if streamer is not None:
                streamer.end()
        sequences = torch.tensor([trace.tokens], device=input_ids.device)
        return Generated(sequences, (trace,)) if config.return_dict_in_generate else sequences

    def _decoder(self, target: CachedModel, draft: CachedModel | None) -> Any:
        """Return the decoder for these models: the one of the last call if they are the same."""
        if not isinstance(self.decoder, str):
            return self.decoder
        if self._made is None or self._made[:2] != (target, draft):
            if draft is not None:
                check_pair(target, draft)
            self._made = target, draft, make_decoder(self.decoder, draft, **self.settings)
        return self._made[2]


def token_selector(
    config: GenerationConfig, seed: int | None, processors: Sequence, vocab: int
) -> TokenSelector:
    """Return the token selection that a config and its processors, in transformers' order, ask
    for."""
    if config.do_sample and all(type(p).__name__ in WARPERS for p in processors):
        return Sampler(seed=seed or 0, warpers=processors)
    choose: TokenSelector = Sampler(seed=seed or 0) if config.do_sample else argmax
    return Processed(choose, processors, vocab=vocab) if processors else choose


def _check_supported(config: GenerationConfig) -> None:
    """Raise `ValueError` naming the first option that a token tree cannot support."""
    for name, off in UNSUPPORTED.items():
        value = getattr(config, name, None)
        if value is not None and value not in off:
            values = " or ".join(map(str, off)) or "None"
            raise ValueError(f"{name}={value} is not supported here; leave it at {values}")


def _check_inputs(inputs: dict) -> None:
    """Raise `ValueError` naming the first model input that would have no effect."""
    for name, value in inputs.items():
        if value is None or name in IGNORED:
            continue
        if name == "attention_mask":
            if not bool((value == 1).all()):
                raise ValueError(
                    "a padded attention_mask is not supported by a callable; give the prompt "
                    "unpadded, or call ouroboros.generate, which takes padded rows one by one"
                )
        elif name == "position_ids":
            if not torch.equal(value.flatten().cpu(), torch.arange(value.numel())):
                raise ValueError(
                    "position_ids other than 0, 1, 2, ... are not supported: omit them"
                )
        elif name == "past_key_values":
            if getattr(value, "_is_user_defined", False) or value.get_seq_length():
                raise ValueError("past_key_values of your own are not supported: omit them")
        else:
            raise ValueError(
                f"{name} is not supported: it would have no effect; give input_ids only"
            )


def _ids_of(eos: int | Sequence[int] | torch.Tensor | None) -> frozenset[int]:
    """Return end-of-sequence ids, in any of transformers' forms, as a set."""
    if eos is None:
        return frozenset()
    if isinstance(eos, torch.Tensor):
        eos = eos.flatten().tolist()
    return frozenset([eos] if isinstance(eos, int) else eos)


def _rows_of(ids: torch.Tensor, mask: torch.Tensor | None, pad: int | None) -> list[torch.Tensor]:
    """Return the prompts, [length] each, without the padding on their left.

    `pad` is an id that only pads. Raises `ValueError` unless ids and mask have one shape
    [rows, length] and all padding is left.
    """
    if not isinstance(ids, torch.Tensor):
        raise ValueError(f"input_ids is a {type(ids).__name__}: give the tokenizer's tensor")
    if ids.ndim != 2 or not ids.numel():
        raise ValueError(f"input_ids has shape {list(ids.shape)}; [rows, length] is needed")
    if mask is None:
        if len(ids) > 1 and pad is not None and bool((ids == pad).any()):
            raise ValueError("these rows hold the pad token: give the tokenizer's attention_mask")
        return list(ids)
    if mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask has shape {list(mask.shape)}, input_ids {list(ids.shape)}: give both "
            "as the tokenizer made them"
        )
    prompts = [row[-length:] for row, length in zip(ids, mask.bool().sum(-1).tolist(), strict=True)]
    for prompt, kept in zip(prompts, mask.bool(), strict=True):
        if not kept.any() or not kept[-len(prompt) :].all():
            raise ValueError(
                "attention_mask: a row must be padded on its left only, and not be empty: use "
                'padding_side="left"'
            )
    return prompts


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
