"""A model provider for inspect_ai: its `hf` provider with a decoder of this library.

    inspect eval task.py --model ouroboros/NAME -M draft=DRAFT -M decoder=ouroboros

`NAME` and `DRAFT` are hub ids or folders, or `reference/target` and `reference/draft`. An entry
point in the group `inspect_ai` registers the provider.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from ouroboros.lm_eval import decode_with, pop_settings
from ouroboros.models.load import model_path

if find_spec("inspect_ai") is not None:  # optional, so this module can be imported without it
    from inspect_ai.model import modelapi
    from inspect_ai.model._providers.hf import HuggingFaceAPI

    @modelapi(name="ouroboros")
    class OuroborosAPI(HuggingFaceAPI):
        """inspect's `hf` provider with a decoder of this library. Decoder settings are model
        arguments, as are options to load the draft with (`-M draft_revision=...`).

        Completions are generated one at a time, unless inspect's `max_connections` is given.
        """

        def __init__(
            self,
            model_name: str,
            *args: Any,
            draft: str | None = None,
            decoder: str = "ouroboros",
            **options: Any,
        ) -> None:
            settings, loading = pop_settings(decoder, options)
            super().__init__(model_path(model_name), *args, **options)
            decode = decode_with(self.model, draft, decoder, settings, loading)
            self.model.generate = partial(self.model.generate, custom_generate=decode)

        def max_connections(self) -> int:
            return 1
