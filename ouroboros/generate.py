"""The library's door: one call, one prompt, the text of plain decoding.

    text = generate(model, input_ids, draft=draft, max_new_tokens=128)

Invariant: what is not supported is refused by name, and what has no effect is said.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence

import torch
from transformers import LogitsProcessor, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from ouroboros.choose import Choose, Sampler, argmax
from ouroboros.decode import Drafter, RootOnly, stream
from ouroboros.drafters.lookahead import Lookahead
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.engine.model import CachedModel
from ouroboros.processors import processed
from ouroboros.vocab import check_pair

UNSAMPLED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DEFAULTS: dict[str, dict] = {
    "greedy": {},
    "lookahead": {"window_size": 7, "ngram_size": 5, "verification_set_size": 7},
    "ouroboros": {},
}


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
    node of a tree on its own path. `decoder` is "greedy", "lookahead", "ouroboros" (`draft` is a
    smaller model of the family; without one, phrases alone draft) or any Drafter; `settings` go to
    the named decoder (max_nodes, pool_state, ...). Without `eos_token_id` the model's own config
    says where to end. Wrap the models in `CachedModel` once to spare each call their
    examination; make the decoder yourself (`Ouroboros(CachedModel(draft), pool_state="task")`) to
    keep its phrases between calls.

    Raises `ValueError` for what is not supported, naming it.
    """
    target = cached(model)
    drafter = drafter_of(decoder, target, draft, settings)
    sampling: dict = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    choose = Sampler(**sampling, seed=seed) if do_sample else _plainly(sampling)
    if not isinstance(logits_processor, Sequence | list):
        raise ValueError("logits_processor must be a list of processors")
    if logits_processor:
        choose = processed(choose, logits_processor, vocab=target.vocab_size)
    if eos_token_id is None:
        eos_token_id = target.model.generation_config.eos_token_id
    return run(target, drafter, input_ids, max_new_tokens, ends_of(eos_token_id), choose, streamer)


def _plainly(sampling: dict) -> Choose:
    """Return the greedy choice; settings of a sampled one are warned of."""
    given = [name for name, value in sampling.items() if value != UNSAMPLED[name]]
    if given:
        warnings.warn(f"{', '.join(given)}: no effect without do_sample=True", stacklevel=3)
    return argmax


def run(
    target: CachedModel,
    drafter: Drafter,
    input_ids: torch.Tensor,
    max_new: int,
    eos: frozenset[int],
    choose: Choose,
    streamer: BaseStreamer | None,
    criteria: Sequence = (),
) -> torch.Tensor:
    """Decode one prompt; return prompt and continuation, [1, length]."""
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


def cached(model: PreTrainedModel | CachedModel) -> CachedModel:
    """Return the model as one that scores trees."""
    return model if isinstance(model, CachedModel) else CachedModel(model)


def drafter_of(decoder: str | Drafter, target: CachedModel, draft, settings: dict) -> Drafter:
    """Return a decoder by its name, or the one that was given.

    Raises `ValueError`, naming it, for a name or a setting that there is not.
    """
    if not isinstance(decoder, str):
        if settings:
            raise ValueError(f"{', '.join(settings)}: give these to the decoder you made yourself")
        return decoder
    if decoder not in DEFAULTS:
        raise ValueError(f"decoder {decoder!r} is not one of {', '.join(DEFAULTS)}, or a Drafter")
    known = inspect.signature(Ouroboros if decoder == "ouroboros" else Lookahead).parameters
    unknown = [name for name in settings if name not in known or name == "draft"]
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
        return Ouroboros(**chosen)
    small = cached(draft)
    check_pair(target, small)
    return Ouroboros(small, **chosen)


def ends_of(eos: int | Sequence[int] | torch.Tensor | None) -> frozenset[int]:
    """Return end-of-sequence ids, in whatever form transformers has them, as a set."""
    if eos is None:
        return frozenset()
    if isinstance(eos, torch.Tensor):
        eos = eos.flatten().tolist()
    return frozenset([eos] if isinstance(eos, int) else eos)
