"""The library's door: `generate()`, and the same behind transformers' `custom_generate`.

    text = generate(model, input_ids, draft=draft, max_new_tokens=128)
    text = model.generate(input_ids, custom_generate=custom_generate(draft=draft))

What a tree of one sequence cannot do (batches, beams, scores) is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from ouroboros.choose import Choose, Sampler, argmax
from ouroboros.decode import Drafter, RootOnly, stream
from ouroboros.drafter import Ouroboros
from ouroboros.lookahead import Lookahead
from ouroboros.model import CachedModel
from ouroboros.processors import Processed, processed
from ouroboros.vocab import check_pair

DEFAULTS: dict[str, dict] = {
    "greedy": {},
    "lookahead": {"window_size": 7, "ngram_size": 5, "verification_set_size": 7},
    "ouroboros": {
        "gamma": 8,
        "window_size": 4,
        "ngram_size": 6,
        "verification_set_size": 6,
        "topk": 3,
    },
}
UNSUPPORTED = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "return_dict_in_generate": False,
    "output_scores": False,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "penalty_alpha": None,
    "guidance_scale": None,
    "constraints": None,
    "force_words_ids": None,
    "dola_layers": None,
}
WARPERS = {
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "MinPLogitsWarper",
}
"""What a `Sampler` can do on all rows at once: they read no text."""


def generate(
    model: PreTrainedModel | CachedModel,
    input_ids: torch.Tensor,
    *,
    draft: PreTrainedModel | CachedModel | None = None,
    decoder: str | Drafter = "ouroboros",
    max_new_tokens: int,
    eos_token_id: int | Sequence[int] | None = None,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    logits_processor: Sequence[LogitsProcessor] = (),
    streamer: BaseStreamer | None = None,
    **settings,
) -> torch.Tensor:
    """Return prompt and continuation, [1, length], as plain decoding would give it.

    `input_ids` is [1, length]. `logits_processor` are applied before temperature and cuts, at each
    node of a tree on its own path. `decoder` is "greedy", "lookahead", "ouroboros" (needs `draft`)
    or any Drafter; `settings` go to the named decoder (gamma, window_size, ngram_size, ...).
    Without `eos_token_id` the model's own generation config says where to end. Wrap the models in
    `CachedModel` once to spare each call their examination; make the decoder yourself
    (`Ouroboros(CachedModel(draft), ..., pool_state="task")`) to keep its phrases between calls.

    Raises `ValueError` for what is not supported, naming it.
    """
    target = _cached(model)
    drafter = _drafter(decoder, target, draft, settings)
    choose: Choose = argmax
    if do_sample:
        choose = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    if not isinstance(logits_processor, Sequence | list):
        raise ValueError("logits_processor must be a list of processors")
    if logits_processor:
        choose = processed(choose, logits_processor, vocab=target.vocab_size)
    if eos_token_id is None:
        eos_token_id = target.model.generation_config.eos_token_id
    return _run(target, drafter, input_ids, max_new_tokens, _ids(eos_token_id), choose, streamer)


def custom_generate(
    *,
    draft: PreTrainedModel | CachedModel | None = None,
    decoder: str | Drafter = "ouroboros",
    streamer: BaseStreamer | None = None,
    seed: int | None = None,
    **settings,
) -> Callable[..., torch.Tensor]:
    """Return a callable for `model.generate(..., custom_generate=...)`.

    The generation config gives the length, the ends and the sampling; without `seed`, torch's
    global generator does. Give the streamer here, not to `model.generate`, which does not hand its
    own on to a callable. One decoder serves all calls with one model: with `pool_state="task"` its
    phrase pool lives on from prompt to prompt.
    """
    kept: list[tuple[CachedModel, Drafter]] = []

    def run(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor=(),
        stopping_criteria=(),
        generation_config: GenerationConfig | None = None,
        **model_kwargs,
    ) -> torch.Tensor:
        config = generation_config or model.generation_config
        _refuse(config, model_kwargs)
        if not kept or kept[0][0].model is not model:
            cached = _cached(model)
            kept[:] = [(cached, _drafter(decoder, cached, draft, settings))]
        target, drafter = kept[0]
        limit = config.max_length - input_ids.shape[-1]
        ends = [c for c in stopping_criteria if not isinstance(c, MaxLengthCriteria)]
        custom = [c for c in ends if not isinstance(c, EosTokenCriteria)]
        return _run(
            target,
            drafter,
            input_ids,
            limit,
            _ids(config.eos_token_id),
            _choice(config, seed, logits_processor, target),
            streamer,
            custom,
        )

    return run


def _run(
    target: CachedModel,
    drafter: Drafter,
    input_ids: torch.Tensor,
    max_new: int,
    eos: frozenset[int],
    choose: Choose,
    streamer: BaseStreamer | None,
    criteria: Sequence = (),
) -> torch.Tensor:
    if not isinstance(input_ids, torch.Tensor):
        raise ValueError(f"input_ids is a {type(input_ids).__name__}: give the tokenizer's tensor")
    if input_ids.ndim != 2 or len(input_ids) != 1:
        raise ValueError(
            f"input_ids has shape {list(input_ids.shape)}; [1, length] is needed: batches are not "
            "supported, call generate once for each prompt"
        )
    prompt = input_ids[0].tolist()
    if streamer is not None:
        streamer.put(input_ids.cpu())
    sent = end = len(prompt)
    tokens = prompt
    for trace in stream(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose):
        tokens = trace.tokens
        stop = _first_stop(tokens, sent, criteria, input_ids.device)
        end = len(tokens) if stop is None else stop
        if streamer is not None:
            for token in tokens[sent:end]:
                streamer.put(torch.tensor([token]))
        if stop is not None:
            break
        sent = end
    if streamer is not None:
        streamer.end()
    return torch.tensor([tokens[:end]], device=input_ids.device)


def _first_stop(tokens: list[int], start: int, criteria: Sequence, device) -> int | None:
    """Return the first length beyond `start` at which a stopping criterion holds, or None."""
    if criteria:
        ids = torch.tensor([tokens], device=device)
        for length in range(start + 1, len(tokens) + 1):
            if any(bool(c(ids[:, :length], None).all()) for c in criteria):
                return length
    return None


def _cached(model: PreTrainedModel | CachedModel) -> CachedModel:
    return model if isinstance(model, CachedModel) else CachedModel(model)


def _drafter(decoder: str | Drafter, target: CachedModel, draft, settings: dict) -> Drafter:
    if not isinstance(decoder, str):
        if settings:
            raise ValueError(f"{', '.join(settings)}: give these to the decoder you made yourself")
        return decoder
    if decoder not in DEFAULTS:
        raise ValueError(f"decoder {decoder!r} is not one of {', '.join(DEFAULTS)}, or a Drafter")
    known = {*DEFAULTS[decoder], "seed", "policy", "options", "learn", "pool", "pool_state"}
    unknown = [name for name in settings if name not in known | {"pool_from_prompt"}]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not supported by generate with {decoder!r}")
    chosen = {**DEFAULTS[decoder], **settings}
    if decoder == "greedy":
        if settings:
            raise ValueError(f"{', '.join(settings)}: the greedy decoder has no settings")
        return RootOnly()
    if decoder == "lookahead":
        return Lookahead(**chosen)
    if draft is None:
        raise ValueError('decoder="ouroboros" needs draft=, a smaller model of the same family')
    small = _cached(draft)
    check_pair(target, small)
    return Ouroboros(small, **chosen)


def _ids(eos: int | Sequence[int] | torch.Tensor | None) -> frozenset[int]:
    if eos is None:
        return frozenset()
    if isinstance(eos, torch.Tensor):
        eos = eos.flatten().tolist()
    return frozenset([eos] if isinstance(eos, int) else eos)


def _choice(
    config: GenerationConfig, seed: int | None, processors: Sequence, target: CachedModel
) -> Choose:
    """Return the choice that config and processors ask for; transformers has put them in order."""
    choose: Choose = argmax
    if config.do_sample:
        choose = Sampler(seed=int(torch.randint(1 << 62, ())) if seed is None else seed)
        if all(type(processor).__name__ in WARPERS for processor in processors):
            choose.warpers = LogitsProcessorList(processors)
            return choose
    return Processed(choose, processors, vocab=target.vocab_size) if processors else choose


def _refuse(config: GenerationConfig, model_kwargs: dict) -> None:
    """Raise `ValueError` naming the first thing asked for that a token tree cannot give."""
    for name, plain in UNSUPPORTED.items():
        value = getattr(config, name, None)
        if value is not None and value != plain:
            raise ValueError(f"{name}={value} is not supported here; leave it at {plain}")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("a padded attention_mask is not supported; give the prompt unpadded")
    if model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("inputs_embeds are not supported; give input_ids")
