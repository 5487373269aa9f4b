"""Lossless decoding in one call: `generate`, or `custom_generate` inside transformers' `generate`.

    ids = generate(model, **tokenizer(text, return_tensors="pt"), draft=draft, max_new_tokens=64)
    ids = model.generate(ids, custom_generate=custom_generate(draft=draft), max_new_tokens=64)

Only the decoding loop is replaced: transformers' `generate` prepares the config, the logits
processors and the stopping criteria, so its options keep their meaning. Invariant: an option that
token trees cannot support raises an error that names it.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    Cache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ouroboros.core.detokenizer import StopStrings
from ouroboros.core.instantiate import unknown
from ouroboros.core.processors import Processed
from ouroboros.core.select import Sampler, TokenSelector, argmax
from ouroboros.core.trace import DecodeTrace, cut
from ouroboros.core.tree import TokenTree
from ouroboros.decode import Decoding, Drafter, begin, check_drafter, together
from ouroboros.decoder_factory import decoder_names, decoder_settings, make_decoder, needs_draft
from ouroboros.drafters.pool import check_range
from ouroboros.engine.model import CachedModel
from ouroboros.integrations.model_wrappers import Model, acquire, locked, plain_model

DRAFT_CONTEXT = 256
FIELDS = frozenset(GenerationConfig().to_dict()) - {"transformers_version"}
UNSUPPORTED: dict[str, tuple] = {
    **dict.fromkeys(("num_beams", "num_beam_groups"), (1,)),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), (False,)),
    **dict.fromkeys(("penalty_alpha", "constraints", "force_words_ids", "dola_layers"), ()),
    "prompt_lookup_num_tokens": (),
    "guidance_scale": (1, 1.0),
    "token_healing": (False,),
    "cache_implementation": ("dynamic",),
}
"""Options that token trees cannot support, each with the values (besides None) still allowed."""
WARPERS = {TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper}
"""Processors that do not read earlier tokens; a `Sampler` applies them to all rows at once."""
IGNORED = {"attention_mask", "use_cache", "logits_to_keep", "tokenizer", "synced_gpus"}
"""Model inputs that are handled elsewhere or do not change the output."""

log = logging.getLogger(__name__)


@dataclass(repr=False)
class Generated(GenerateDecoderOnlyOutput):
    """The result with `return_dict_in_generate=True`: `sequences` [rows, length], as in
    transformers, and `traces`, the `DecodeTrace` of each row (without padding).

    With `output_scores` and `output_logits`, `scores` and `logits` have one tensor [rows, vocab]
    per new token: logits after and before the processors, zeros after the end of a row.
    """

    traces: tuple[DecodeTrace, ...] | None = None

    def __repr__(self) -> str:
        shape = None if self.sequences is None else list(self.sequences.shape)
        return (
            f"Generated(sequences={shape}, calls={self.calls}, draft_calls={self.draft_calls}, "
            f"accepted={self.accepted})"
        )

    @property
    def calls(self) -> int:
        """Number of target calls; a call that n rows share counts n times."""
        return sum(len(trace.steps) for trace in self.traces or ())

    @property
    def draft_calls(self) -> int:
        """Number of draft calls."""
        return sum(step.draft_calls for trace in self.traces or () for step in trace.steps)

    @property
    def accepted(self) -> int:
        """Number of accepted draft tokens."""
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
    draft_context: int | None = DRAFT_CONTEXT,
    batch_size: int | None = None,
    logits_processor: Sequence[LogitsProcessor] = (),
    stopping_criteria: Sequence[StoppingCriteria] = (),
    prefix_allowed_tokens_fn: Callable | None = None,
    tokenizer=None,
    streamer: BaseStreamer | Sequence[BaseStreamer] | None = None,
    **options,
) -> torch.Tensor | Generated:
    """Return prompts and continuations, [rows, length]: exactly the tokens of standard decoding.

    - `input_ids`: [rows, length]; shorter rows are padded on the left, with zeros in
      `attention_mask`. The result is padded on the right.
    - `draft` (or `assistant_model`): a smaller model of the same family. "speculative" needs one;
      "ouroboros" without one drafts with phrases alone.
    - `draft_context`: the draft reads at most the last `draft_context` tokens of a prompt (None:
      all of it). A draft given as `CachedModel` uses its own `prefill_limit` instead.
    - `decoder`: a name in conf/decoder or any `Drafter`. To keep phrases between calls, pass
      `Ouroboros(CachedModel(draft), pool_state="task")`.
    - `batch_size`: rows decoded together (None: all). A row's tokens do not depend on the other
      rows. Rows are decoded one at a time if `decoder` is a `Drafter`, if `pool_state="task"`, or
      if a model cannot score several sequences per call (`CachedModel.why_not_together`).
    - `seed`: row i samples with `seed` + i, so give calls with n rows seeds that are n apart; None
      draws the seeds from torch's generator.
    - `stopping_criteria`: each is called with one row after each new token. In a batch, every row
      after the first uses shallow copies of them. A row that has ended is padded;
      transformers does so only if there is an end-of-sequence id.
    - `streamer`: a streamer, or a list of one per row.
    - `options`: transformers' generation options (max_new_tokens, max_length, do_sample,
      temperature, eos_token_id, stop_strings with `tokenizer`, repetition_penalty,
      return_dict_in_generate, ...) and the named decoder's settings (max_nodes, ...). They override
      `generation_config`, which overrides the model's own; None switches an option off.

    `max_time` includes preparing the models and, in the first call, compiling kernels.
    With `return_dict_in_generate=True` the result is a `Generated`. A row ends at the model's last
    position, with a warning. The model's wrapper is cached on the model for the next call. Threads
    that use the same model take turns.

    Raises `ValueError` naming the option that is not supported.
    """
    plain = plain_model("model", model)
    if not isinstance(input_ids, torch.Tensor):
        raise ValueError(f"input_ids is a {type(input_ids).__name__}: give the tokenizer's tensor")
    if input_ids.ndim != 2 or not input_ids.numel():
        raise ValueError(f"input_ids has shape {list(input_ids.shape)}; [rows, length] is needed")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {list(attention_mask.shape)}, input_ids "
            f"{list(input_ids.shape)}: give both as the tokenizer made them"
        )
    own = {name: value for name, value in options.items() if name in FIELDS}
    settings = {name: value for name, value in options.items() if name not in own}
    config = copy.deepcopy(generation_config)
    strings = (config and config.stop_strings) or plain.generation_config.stop_strings
    strings = own.pop("stop_strings", strings)
    if config is not None:
        config.update(**own, stop_strings=None)
        own = {name: None for name, value in own.items() if value is None}  # unset model defaults
    if strings and tokenizer is None:
        raise ValueError(f"stop_strings={strings!r} need tokenizer=, the model's own")
    generation = CustomGenerate(
        draft=draft,
        decoder=decoder,
        streamer=streamer,
        seed=seed,
        draft_context=draft_context,
        batch_size=batch_size,
        **settings,
    )
    if strings:
        strings = [strings] if isinstance(strings, str) else strings
        generation.stop = partial(StopStrings, tokenizer, strings, from_prompt=True)
    if isinstance(model, CachedModel):
        generation.target = model
    with ExitStack() as stack:
        stack.enter_context(locked(plain, generation.draft, generation.owner))
        defaults = plain.generation_config  # its stop strings are in `generation.stop` already
        stack.callback(setattr, defaults, "stop_strings", defaults.stop_strings)
        defaults.stop_strings = None
        return type(plain).generate(  # type: ignore[attr-defined]
            plain,
            input_ids,
            attention_mask=attention_mask,
            generation_config=config,
            logits_processor=LogitsProcessorList(logits_processor),
            stopping_criteria=StoppingCriteriaList(stopping_criteria),
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
            custom_generate=generation,
            **own,
        )


class CustomGenerate:
    """A callable for `model.generate(..., custom_generate=...)`; create it with `custom_generate`.

    Lengths, end-of-sequence ids and sampling come from the generation config. Pass `streamer` and
    `assistant_model` here: `model.generate` silently drops its arguments of these names. It also
    drops `tokenizer`, so instead of `stop_strings` pass transformers' `StopStringCriteria`. All
    calls with the same models share one decoder, which with `pool_state="task"` keeps its phrases
    from prompt to prompt. `settings` are the decoder's; for all other arguments see `generate`.
    """

    def __init__(
        self,
        *,
        draft: Model | None = None,
        assistant_model: Model | None = None,
        decoder: str | Drafter = "ouroboros",
        streamer: BaseStreamer | Sequence[BaseStreamer] | None = None,
        seed: int | None = None,
        draft_context: int | None = DRAFT_CONTEXT,
        batch_size: int | None = None,
        **settings,
    ) -> None:
        limits = {"draft_context": draft_context, "batch_size": batch_size}
        check_range(1, **{name: limit for name, limit in limits.items() if limit is not None})
        if None not in (draft, assistant_model):
            raise ValueError("draft and assistant_model are the same option: give only one")
        self.draft = assistant_model if draft is None else draft
        self.decoder, self.settings, self.streamer = decoder, settings, streamer
        self.seed, self.draft_context, self.batch_size = seed, draft_context, batch_size
        self.target: CachedModel | None = None
        self.stop: Callable[..., StopStrings] | None = None  # called with a row's prompt
        self._made: tuple[CachedModel | None, CachedModel | None, Any] = None, None, None
        if self.draft is not None and not isinstance(self.draft, CachedModel):
            self.draft = plain_model("draft", self.draft)
        if not isinstance(decoder, str):
            check_drafter(decoder)
            own, self.draft = self.draft, getattr(decoder, "draft", None)
            if unused := [*settings, *(["draft"] if own not in (None, self.draft) else [])]:
                names = ", ".join(unused)
                raise ValueError(f"{names}: pass it to the constructor of your decoder instead")
        elif decoder not in decoder_names():
            names = unknown(decoder, decoder_names())
            raise ValueError(f"there is no decoder {names}, or pass a Drafter")
        elif strange := [name for name in settings if name not in decoder_settings(decoder)]:
            theirs = "transformers' generation options (max_new_tokens, do_sample, ...)"
            similar = {*FIELDS, *inspect.signature(generate).parameters}
            names = unknown(strange[0], [*decoder_settings(decoder), theirs], similar)
            raise ValueError(f"generate with decoder={decoder!r} has no option {names}")
        elif not needs_draft(decoder):
            self.draft = None

    @property
    def owner(self) -> object:
        """The object whose lock a call holds: the decoder if it is a `Drafter`, else self."""
        return self if isinstance(self.decoder, str) else self.decoder

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
        for name, off in UNSUPPORTED.items():
            value = getattr(config, name, None)
            if value is not None and value not in off:
                values = " or ".join(map(str, off)) or "None"
                raise ValueError(f"{name}={value} is not supported here; leave it at {values}")
        prepare = model.prepare_inputs_for_generation
        known = prepare.__module__.startswith("transformers")  # or transformers_modules (hub code)
        if not known or getattr(prepare, "__self__", None) is not model:
            raise ValueError(
                "prepare_inputs_for_generation was replaced, as PEFT does for soft prompts, which "
                "are not supported: it would have no effect"
            )
        prompts = _prompts(input_ids, model_kwargs)
        given = [None] * len(prompts) if self.streamer is None else self.streamer
        streamers: Sequence = given if isinstance(given, Sequence) else [given]
        if len(streamers) != len(prompts):
            raise ValueError(
                f"input_ids has {len(prompts)} rows: give a list of as many streamers, one for each"
            )
        own = (MaxLengthCriteria, EosTokenCriteria)  # `Decoding` applies these rules
        criteria = [c for c in stopping_criteria if type(c) not in own]
        lengths = (c.max_length for c in stopping_criteria if type(c) is MaxLengthCriteria)
        ends = [c.eos_token_id for c in stopping_criteria if type(c) is EosTokenCriteria]
        eos = frozenset(token for ids in ends for token in ids.tolist())
        pad, device = getattr(config, "_pad_token_tensor", None), input_ids.device
        max_new = max(1, min(lengths, default=config.max_length) - input_ids.shape[-1])
        rows: list[_Row] = []
        for ids, prompt, streamer in zip(input_ids.tolist(), prompts, streamers, strict=True):
            met = [copy.copy(own) for own in criteria] if rows else criteria  # they may count calls
            stop = None if self.stop is None else self.stop(after=prompt)
            rows.append(_Row(prompt, ids[: len(ids) - len(prompt)], met, stop, device, streamer))
        target_model, limit = self.target or model, self.draft_context
        models = acquire(target_model, self.draft, self.owner, draft_context=limit)
        with models as (target, draft):
            free = self._decoders(target, draft, len(rows))
            size = len(free)

            def begun() -> Iterator[Decoding]:
                for number, row in enumerate(rows):
                    seed = None if self.seed is None else self.seed + number
                    if config.do_sample and seed is None:
                        seed = int(torch.randint(1 << 62, ()))
                    batch: dict[str, Any] = {"padding": row.padding, "row": number, "eos": eos}
                    batch["prompt_len"] = len(row.prompt)
                    batch["copies"] = config.num_return_sequences or 1
                    processors = logits_processor, target.vocab_size
                    row.choose = token_selector(config, seed, *processors, **batch)
                    limits: dict[str, Any] = {"max_new": max_new, "eos": eos, "choose": row.choose}
                    yield row.begin(begin(target, free.pop(), row.prompt, **limits))

            for live in together(begun(), size):
                for row in rows:
                    if row.decoding in live:
                        row.follow()
                free += [own.drafter for own in live if own.left <= 0]
            for number, row in enumerate(rows):
                if row.trace.finish == "context" and len(row.trace.new_tokens) < max_new:
                    log.warning(
                        "row %d ends at the model's last position, %d; transformers would continue "
                        "beyond it",
                        *(number, target.max_len),
                    )
            scores = []
            wanted = config.output_scores or config.output_logits
            if wanted and config.return_dict_in_generate:
                scores = [_scores(target, row.trace, row.choose) for row in rows]
        texts = [torch.tensor([*row.padding, *row.trace.tokens], device=device) for row in rows]
        traces = [row.trace for row in rows]
        filler = 0 if pad is None else int(pad)
        sequences = pad_sequence(texts, batch_first=True, padding_value=filler)
        if not config.return_dict_in_generate:
            return sequences
        result = Generated(sequences, traces=tuple(traces))  # type: ignore[arg-type]
        if scores:
            after, before = (pad_sequence(list(rows)) for rows in zip(*scores, strict=True))
            result.scores = tuple(after) if config.output_scores else None
            result.logits = tuple(before) if config.output_logits else None
        return result

    def _decoders(self, target: CachedModel, draft: CachedModel | None, rows: int) -> list[Any]:
        """Return one decoder per row decoded in parallel, or a single one if rows must be decoded
        one by one (see `batch_size` of `generate`). Reuses the decoders of the last call if the
        models are the same."""
        if not isinstance(self.decoder, str):
            return [self.decoder]
        if self._made[:2] != (target, draft):
            self._made = target, draft, [make_decoder(self.decoder, draft, **self.settings)]
        made = self._made[2]
        size = min(rows, rows if self.batch_size is None else self.batch_size)
        if size == 1 or getattr(made[0], "carries_state", False):
            return made[:1]
        if any(model and model.why_not_together() for model in (target, draft)):
            return made[:1]
        while len(made) < size:
            made.append(make_decoder(self.decoder, draft, **self.settings))
        return made[:size]


@dataclass(eq=False)
class _Row:
    """A row of a batch. It ends at the first token that meets a stopping criterion or completes a
    stop string."""

    prompt: list[int]
    padding: list[int]
    criteria: list[StoppingCriteria]
    stop: StopStrings | None
    device: torch.device
    streamer: BaseStreamer | None
    choose: TokenSelector = argmax
    decoding: Decoding | None = None

    def begin(self, decoding: Decoding) -> Decoding:
        """Set and return the row's decoding; pass the prompt to the streamer."""
        self.decoding, self.trace, self.sent = decoding, decoding.trace, len(self.prompt)
        if self.streamer is not None:
            self.streamer.put(torch.tensor([[*self.padding, *self.prompt]]))
        return decoding

    def follow(self) -> None:
        """End the row at the first new token that stops it; stream the tokens."""
        assert self.decoding is not None
        trace = self.decoding.trace
        keep = None if self.stop is None else self.stop(trace.new_tokens)
        if self.criteria:
            last = len(trace.tokens) if keep is None else len(self.prompt) + keep
            text = torch.tensor([[*self.padding, *trace.tokens]], device=self.device)
            for length in range(self.sent + 1, last + 1):
                start = text[:, : len(self.padding) + length]
                if any(met(start, None) for met in self.criteria):  # type: ignore[arg-type]
                    keep = length - len(self.prompt)
                    break
        if keep is not None:
            self.trace, self.decoding.left = cut(trace, keep), 0
        if self.streamer is not None:
            for token in self.trace.tokens[self.sent :]:
                self.streamer.put(torch.tensor([token]))
            if self.decoding.left <= 0:
                self.streamer.end()
        self.sent = len(trace.tokens)


custom_generate = CustomGenerate


def _scores(
    target: CachedModel, trace: DecodeTrace, choose: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (scores, logits) of each new token, [new, vocab] each, with an extra target call."""
    prompt, new = trace.tokens[: trace.prompt_len], trace.new_tokens
    tree = TokenTree.chain(prompt[-1], new[:-1])
    logits = target.score(target.new_sequence(), prompt, tree).float().clone()
    if isinstance(choose, Processed):
        return choose.processed(logits, prompt, tree), logits
    return choose.warped(logits), logits


def token_selector(
    config: GenerationConfig, seed: int | None, processors: Sequence, vocab: int, **batch: Any
) -> TokenSelector:
    """Return the selector for a generation config and its logits `processors`, applied in
    transformers' order: a `Sampler` or `argmax`, wrapped in `Processed` if there are processors
    besides `WARPERS`. `batch` has the arguments `padding`, `row`, `copies`, `eos` and
    `prompt_len` of `Processed`."""
    if config.do_sample and all(type(p) in WARPERS for p in processors):
        return Sampler(seed=seed or 0, warpers=processors)
    choose: TokenSelector = Sampler(seed=seed or 0) if config.do_sample else argmax
    return Processed(choose, processors, vocab=vocab, **batch) if processors else choose


def _prompts(ids: torch.Tensor, inputs: dict) -> list[list[int]]:
    """Return the prompts of a batch, without their left padding.

    Raises `ValueError` for padding anywhere else, and for an unsupported entry of `inputs`.
    """
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask.long()
    if ids.numel() and (not mask[:, -1].all() or (mask.diff(dim=-1) < 0).any()):
        raise ValueError(
            "attention_mask: rows must be padded on the left only and not be empty: use "
            'padding_side="left", and set the mask to 1 where the pad token is text'
        )
    for name, value in inputs.items():
        if value is None or name in IGNORED or (name == "mm_encoder_outputs" and not value):
            continue
        if name == "position_ids":
            if not (value == (mask.cumsum(-1) - 1).clamp(min=0)).all():  # some have several axes
                raise ValueError(
                    "position_ids other than 0, 1, 2, ... are not supported: omit them"
                )
        elif isinstance(value, Cache):  # named "cache" since transformers 5.24
            if getattr(value, "_is_user_defined", False) or value.get_seq_length():
                raise ValueError(f"{name} of your own is not supported: omit it")
        else:
            raise ValueError(
                f"{name} is not supported: it would have no effect; give input_ids only"
            )
    return [row[seen == 1].tolist() for row, seen in zip(ids, mask, strict=True)]
