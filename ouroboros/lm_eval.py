"""A model for the lm-evaluation-harness: accuracy and speed of a decoder in one results file.

    lm-eval run --model ouroboros --model_args pretrained=ID,draft=ID,dtype=float32 --tasks gsm8k
    python -m ouroboros.lm_eval run --model ouroboros ...       # lm-eval 0.4.13 and earlier

This is the harness's `hf` model with this library's decoding loop. Prompts, stop strings and
log-likelihoods are computed by `hf`. Invariant: greedy completions equal those of `hf`, up to
numeric ties.
"""

from __future__ import annotations

import time

import torch
from transformers import PreTrainedModel

import ouroboros
from ouroboros.baselines.hf import Arrivals
from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import Sample
from ouroboros.decoder_factory import decoder_settings
from ouroboros.engine.model import CachedModel
from ouroboros.integrations.generate import DRAFT_CONTEXT, CustomGenerate
from ouroboros.integrations.model_wrappers import Model
from ouroboros.models.load import model_path

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError:  # the harness is optional: this module can be imported without it
    HFLM, register_model = object, None

FIGURES = (
    *("output_throughput", "ttft_ms", "e2e_latency_s", "target_forwards_per_token"),
    *("draft_forwards_per_token", "speculative_decoding"),
)
WARM_UP_TOKENS = 8


def pop_settings(decoder: str, options: dict) -> tuple[dict, dict]:
    """Remove the decoder's settings (with `draft_context`) and the options to load the draft with
    from `options`; return both. `draft_revision` is the draft's `revision`, and so on."""
    known = [*decoder_settings(decoder), "draft_context"]
    settings = {name: options.pop(name) for name in known if name in options}
    own = [name for name in options if name.startswith("draft_")]
    return settings, {name.removeprefix("draft_"): options.pop(name) for name in own}


def decode_with(
    model: PreTrainedModel, draft: str | Model | None, decoder: str, settings: dict, loading: dict
) -> CustomGenerate:
    """Return the callable for `model.generate(custom_generate=...)`. A draft given by name is
    loaded with the options `loading`, by default in the model's dtype and on its device.
    `pop_settings` returns `settings` and `loading`. Raises `ValueError` if `loading` has no
    effect."""
    if isinstance(draft, str):
        device = None if "device_map" in loading else str(model.device)
        options = {"dtype": model.dtype, "device": device, **loading}
        options["draft_head"] = options.pop("head", "auto")
        draft = CachedModel.from_pretrained(model_path(draft), **options)
        draft.prefill_limit = settings.pop("draft_context", DRAFT_CONTEXT)
    elif loading:
        name, given = f"draft_{min(loading)}", "is loaded already" if draft else "is missing"
        raise ValueError(f"{name} has no effect: the draft {given}; give draft=<hub id or folder>")
    return CustomGenerate(draft=draft, decoder=decoder, **settings)


class OuroborosLM(HFLM):
    """The harness's `hf` model with a decoder of this library.

    `pretrained` and `draft` are hub ids, folders or models; `reference/target` and
    `reference/draft` are the pair that ships with the package. `decoder` is a name in conf/decoder;
    its settings are model arguments too (`max_nodes=24`), as are options to load the draft with
    (`draft_revision=...`, `draft_trust_remote_code=True`). All other arguments are those of `hf`.
    Rows of a batch are decoded one after the other. The constructor generates a few tokens as
    warm-up, so that no completion's time includes compilation.
    """

    def __init__(
        self,
        pretrained: str | Model,
        draft: str | Model | None = None,
        decoder: str = "ouroboros",
        **options,
    ) -> None:
        if options.get("mixed_precision_dtype") is not None:
            raise ValueError("mixed_precision_dtype is not supported: give dtype instead")
        settings, loading = pop_settings(decoder, options)
        super().__init__(
            model_path(pretrained) if isinstance(pretrained, str) else pretrained, **options
        )
        self.samples: list[Sample] = []
        self.decoder, self.draft = decoder, draft if isinstance(draft, str) else None
        self.decode = decode_with(self.model, draft, decoder, settings, loading)
        warm_up = torch.full((1, WARM_UP_TOKENS), self.prefix_token_id, device=self.device)
        self._model_generate(warm_up, 2 * WARM_UP_TOKENS, [])
        self.samples.clear()

    def _model_generate(self, context, max_length, stop, **generation_kwargs) -> torch.Tensor:
        """Return the rows of `context` [rows, length], padded on the left, with their
        continuations, padded on the right; see `HFLM`."""
        mask = generation_kwargs.pop("attention_mask", torch.ones_like(context)).bool()
        rows = []
        for padded, real in zip(context, mask, strict=True):
            prompt = padded[real]
            padding = len(padded) - len(prompt)
            self.decode.streamer = arrivals = Arrivals()
            started = time.perf_counter()
            generated = super()._model_generate(
                prompt[None],
                max_length - padding,
                stop,
                attention_mask=torch.ones_like(prompt[None]),
                custom_generate=self.decode,
                return_dict_in_generate=True,
                **generation_kwargs,
            )
            wall_s = time.perf_counter() - started
            (trace,) = generated.traces
            sample = Sample(
                example=str(len(self.samples)),
                decoder=self.decoder,
                repeat=0,
                order=0,
                prompt_tokens=len(prompt),
                new_tokens=tuple(trace.new_tokens),
                finish=trace.finish,
                steps=tuple(trace.steps),
                wall_s=wall_s,
                ttft_s=arrivals.at[0][0] - started,
            )
            self.samples.append(sample)
            rows.append(torch.cat([padded[:padding], generated.sequences[0]]))
        pad = self.tokenizer.pad_token_id
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)

    def set_cache_hook(self, cache_hook) -> None:
        """Raise `ValueError`: with the harness's cache, completions would have no times."""
        raise ValueError("--use_cache skips the generation to be timed: omit it, or use hf")

    def get_model_info(self) -> dict:
        """Return the model info of `hf`. The key "ouroboros" adds this library's version, the
        decoder, the draft's name, torch's threads, the numbers of completions and new tokens, and
        the speed metrics named in `FIGURES` (None before the first completion)."""
        generated = [sample for sample in self.samples if sample.new_tokens]
        return super().get_model_info() | {
            "ouroboros": {
                "version": ouroboros.__version__,
                "decoder": self.decoder,
                "draft": self.draft,
                "threads": torch.get_num_threads(),
                "completions": len(generated),
                "new_tokens": METRICS["new_tokens"](generated),
                **{name: METRICS[name](generated) if generated else None for name in FIGURES},
            }
        }


if register_model:  # releases after 0.4.13 find the entry point by themselves
    register_model("ouroboros")(OuroborosLM)

if __name__ == "__main__":
    if not register_model:
        raise SystemExit("lm-eval is missing: pip install 'ouroboros-decoding[lm-eval]'")
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
