"""transformers' own door: `model.generate(..., custom_generate=...)`.

    text = model.generate(input_ids, custom_generate=custom_generate(draft=draft))

What a tree of one sequence cannot do (batches, beams, scores) is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from ouroboros.choose import Choose, Sampler, argmax
from ouroboros.decode import Drafter
from ouroboros.engine.model import CachedModel
from ouroboros.generate import cached, drafter_of, ends_of, run
from ouroboros.processors import Processed

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
    return _Generation(lambda target: drafter_of(decoder, target, draft, settings), streamer, seed)


class _Generation:
    """What transformers calls with a model, a prompt and all that it made of its arguments."""

    def __init__(
        self,
        make: Callable[[CachedModel], Drafter],
        streamer: BaseStreamer | None,
        seed: int | None,
    ) -> None:
        self.make, self.streamer, self.seed = make, streamer, seed
        self._kept: tuple[CachedModel, Drafter] | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Sequence = (),
        stopping_criteria: Sequence = (),
        generation_config: GenerationConfig | None = None,
        **model_kwargs,
    ) -> torch.Tensor:
        config = generation_config or model.generation_config
        _refuse(config, model_kwargs)
        target, drafter = self._decoder(model)
        known = (MaxLengthCriteria, EosTokenCriteria)
        return run(
            target,
            drafter,
            input_ids,
            config.max_length - input_ids.shape[-1],
            ends_of(config.eos_token_id),
            _choice(config, self.seed, logits_processor, target),
            self.streamer,
            [criterion for criterion in stopping_criteria if not isinstance(criterion, known)],
        )

    def _decoder(self, model: PreTrainedModel) -> tuple[CachedModel, Drafter]:
        """Return the decoder of the calls before, or another for another model."""
        if self._kept is None or self._kept[0].model is not model:
            target = cached(model)
            self._kept = target, self.make(target)
        return self._kept


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
