"""transformers' own extension point: `model.generate(..., custom_generate=...)`.

    text = model.generate(input_ids, custom_generate=custom_generate(draft=draft))

transformers prepares what it prepares for its own loops (the generation config with the model's
defaults, one list of logits processors, stopping criteria), and this loop replaces theirs. Options
that a token tree cannot support (beams, scores), or that would have no effect, are errors that name
the option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.utils import ModelOutput

from ouroboros.decode import Drafter, stream
from ouroboros.decoders import decoder_names, decoder_settings, make_decoder, needs_draft
from ouroboros.engine.model import CachedModel
from ouroboros.instantiate import unknown
from ouroboros.model_wrappers import Model, acquire, check_model
from ouroboros.processors import Processed
from ouroboros.select import Sampler, TokenSelector, argmax
from ouroboros.trace import DecodeTrace, cut
from ouroboros.vocab import check_pair

UNSUPPORTED: dict[str, tuple] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "num_beam_groups"), (1,)),
    **{f"output_{name}": (False,) for name in ("scores", "logits", "attentions", "hidden_states")},
    "penalty_alpha": (),
    "guidance_scale": (1, 1.0),
    "constraints": (),
    "force_words_ids": (),
    "dola_layers": (),
    "prompt_lookup_num_tokens": (),
    "token_healing": (False,),
    "cache_implementation": ("dynamic",),
}
"""Options that a token tree cannot support, and the values, besides None, that switch them off."""
WARPERS = {
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "MinPLogitsWarper",
}
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
    return Generation(draft, decoder, settings, streamer=streamer, seed=seed)


class Generation:
    """The callable that transformers calls with a model, a prompt and its prepared arguments.

    `config` is the generation config of the last call, as transformers prepared it.
    """

    def __init__(
        self,
        draft: Model | None,
        decoder: str | Drafter,
        settings: dict,
        *,
        target: CachedModel | None = None,
        streamer: BaseStreamer | None = None,
        seed: int | None = None,
    ) -> None:
        if draft is not None:
            check_model("draft", draft)
        if not isinstance(decoder, str):
            if settings:
                names = ", ".join(settings)
                raise ValueError(f"{names}: give these to the decoder you made yourself")
            draft = getattr(decoder, "draft", None)
        elif decoder not in decoder_names():
            names = unknown(decoder, decoder_names())
            raise ValueError(f"there is no decoder {names}, or pass a Drafter")
        elif strange := [name for name in settings if name not in decoder_settings(decoder)]:
            names = unknown(strange[0], decoder_settings(decoder), GenerationConfig().to_dict())
            raise ValueError(f"generate with decoder={decoder!r} has no option {names}")
        elif not needs_draft(decoder):
            draft = None
        self.draft = draft
        self.decoder, self.settings = decoder, settings
        self.target, self.streamer, self.seed = target, streamer, seed
        self.config = GenerationConfig()
        self._made: tuple[CachedModel, CachedModel | None, Drafter] | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Sequence = (),
        stopping_criteria: Sequence = (),
        generation_config: GenerationConfig | None = None,
        **model_kwargs,
    ) -> torch.Tensor | Generated:
        self.config = config = generation_config or model.generation_config
        check_supported(config)
        if len(input_ids) != 1:
            raise ValueError(
                f"input_ids has shape {list(input_ids.shape)}; [1, length] is needed: batches are "
                "not supported by a callable; ouroboros.generate takes them row by row"
            )
        _check_inputs(model_kwargs)
        seed = self.seed
        if config.do_sample and seed is None:
            seed = int(torch.randint(1 << 62, ()))
        own = (MaxLengthCriteria, EosTokenCriteria)
        criteria = [one for one in stopping_criteria if not isinstance(one, own)]
        with acquire(self.target or model, self.draft) as (target, draft):
            strange = input_ids[(input_ids < 0) | (input_ids >= target.vocab_size)]
            if strange.numel():
                raise ValueError(
                    f"input_ids holds {int(strange[0])}, the model knows ids 0 to "
                    f"{target.vocab_size - 1}: give the ids of the model's own tokenizer"
                )
            choose = token_selector(config, seed, logits_processor, target.vocab_size)
            trace = self._decode(target, self._drafter(target, draft), input_ids, choose, criteria)
        sequences = torch.tensor([trace.tokens], device=input_ids.device)
        return Generated(sequences, (trace,)) if config.return_dict_in_generate else sequences

    def _decode(
        self,
        target: CachedModel,
        drafter: Drafter,
        input_ids: torch.Tensor,
        choose: TokenSelector,
        criteria: Sequence,
    ) -> DecodeTrace:
        """Decode one prompt [1, length] up to its end or the first criterion that holds."""
        prompt, streamer = input_ids[0].tolist(), self.streamer
        max_new, eos = self.config.max_length - len(prompt), ids_of(self.config.eos_token_id)
        if streamer is not None:
            streamer.put(input_ids.cpu())
        sent = len(prompt)
        for trace in stream(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose):
            ids = torch.tensor([trace.tokens], device=input_ids.device) if criteria else None
            stop = None
            for length in range(sent + 1, len(trace.tokens) + 1) if criteria else ():
                if any(bool(c(ids[:, :length], None).all()) for c in criteria):
                    stop = length
                    trace = cut(trace, stop - len(prompt))
                    break
            if streamer is not None:
                for token in trace.tokens[sent:]:
                    streamer.put(torch.tensor([token]))
            sent = len(trace.tokens)
            if stop is not None:
                break
        if streamer is not None:
            streamer.end()
        return trace

    def _drafter(self, target: CachedModel, draft: CachedModel | None) -> Drafter:
        """Return the decoder of earlier calls with the same models, else a new one."""
        if self._made is None or self._made[0] is not target or self._made[1] is not draft:
            drafter = self.decoder
            if isinstance(drafter, str):
                if draft is not None:
                    check_pair(target, draft)
                drafter = make_decoder(drafter, draft, **self.settings)
            self._made = target, draft, drafter
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


def check_supported(config: GenerationConfig) -> None:
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


def ids_of(eos: int | Sequence[int] | torch.Tensor | None) -> frozenset[int]:
    """Return end-of-sequence ids, in any of transformers' forms, as a set."""
    if eos is None:
        return frozenset()
    if isinstance(eos, torch.Tensor):
        eos = eos.flatten().tolist()
    return frozenset([eos] if isinstance(eos, int) else eos)
