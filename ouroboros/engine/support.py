"""Can this model score a token tree? Settled at load, by facts and a trial, not by a list.

A model qualifies if it keeps one key and value for each token and layer, and if a token's result
depends only on the tokens that its mask shows and on the position it is given. The trial scores a
short sequence plainly and again among decoy siblings, any sliding window narrowed for the while; a
model that answers differently (ALiBi, an ignored mask, a window it does not keep) is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ouroboros.engine.cache import LayerShape
from ouroboros.engine.facts import Facts, config_facts, tolerance
from ouroboros.engine.masks import Layout, dense
from ouroboros.engine.quantised import check_kernels
from ouroboros.tree import TokenTree

DECOYS = 6
TRIAL_WINDOW = 2  # so narrow that the trial's four tokens reach beyond it


def examine(model: PreTrainedModel) -> Facts:
    """Return the facts of a model; raise `ValueError` with the reason if it cannot score trees."""
    facts = config_facts(model)
    check_kernels(model)
    return replace(facts, layers=_trial(model, type(model).__name__, facts))


@torch.inference_mode()
def _trial(model: PreTrainedModel, name: str, facts: Facts) -> list[LayerShape]:
    """Score four tokens plainly, then among decoys; return the shapes that the cache held."""
    if facts.max_len < 4:
        raise ValueError(f"{name} has only {facts.max_len} positions; at least 4 are needed")
    vocab = facts.vocab_size
    chain = [token % vocab for token in (1, 2, 3, 5)]
    decoys = [(7 + i) % vocab for i in range(DECOYS)]
    tree = TokenTree(  # the chain's second token stands after the decoys, below the root as they do
        (chain[0], *decoys, *chain[1:]), (-1, *[0] * DECOYS, 0, DECOYS + 1, DECOYS + 2)
    )
    narrow = replace(facts, sliding_window=facts.sliding_window and TRIAL_WINDOW)
    mask, positions = dense(Layout(0, [], tree), narrow), tree.depths().tolist()
    plain_cache = DynamicCache()
    with _narrowed(model, facts.sliding_window):
        plain = _logits(model, name, chain, range(4), None, plain_cache, facts)
        shapes = _shapes(plain_cache, name)
        among = _logits(model, name, tree.tokens, positions, mask, DynamicCache(), facts)
    among = among[:, tree.path_to(len(tree) - 1)]
    spread = plain.std().clamp_min(1e-6)
    error = ((plain - among).abs().max() / spread).item()
    if not error < tolerance(facts.dtype):
        raise ValueError(
            f"{name} does not follow an explicit attention mask with explicit positions (its "
            f"logits move by {error:.2g} standard deviations among masked tokens, as with ALiBi "
            "position biases or a sliding window that its masks do not keep): trees cannot be "
            "scored; choose a model with rotary or learned positions"
        )
    return shapes


@contextmanager
def _narrowed(model: PreTrainedModel, window: int | None) -> Iterator[None]:
    """Narrow the sliding window to the trial's, in every config that the model's parts read."""
    found: list[Any] = [part.config for part in model.modules() if hasattr(part, "config")]
    configs = {id(config): config for config in found}
    wide = [c for c in configs.values() if window and getattr(c, "sliding_window", None) == window]
    for config in wide:
        config.sliding_window = TRIAL_WINDOW
    try:
        yield
    finally:
        for config in wide:
            config.sliding_window = window


def _logits(model, name: str, ids, positions, mask, cache, facts: Facts) -> torch.Tensor:
    try:
        out = model(
            input_ids=torch.tensor([list(ids)], device=facts.device),
            position_ids=torch.tensor([list(positions)], device=facts.device),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=0,
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if "position_ids" not in inspect.signature(model.forward).parameters:
            reason = "its forward takes no position_ids, as where positions are ALiBi biases"
        failed = _plain_failure(model, ids, facts)
        if failed is not None:
            raise ValueError(
                f"{name} cannot be called at all in {facts.dtype} ({failed}): choose another dtype "
                'or, for experts, load it with experts_implementation="eager"'
            ) from error
        raise ValueError(
            f"{name} does not accept explicit masks, positions and a cache ({reason}): trees "
            "cannot be scored; choose a model with rotary or learned positions"
        ) from error
    return out.logits.double()


def _plain_failure(model, ids, facts: Facts) -> str | None:
    """Return why a model fails even at a plain call of its tokens alone; None where it does not."""
    try:
        model(input_ids=torch.tensor([list(ids)], device=facts.device))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def _shapes(cache: DynamicCache, name: str) -> list[LayerShape]:
    shapes = []
    for index, layer in enumerate(cache.layers):
        keys = getattr(layer, "keys", None)
        if not isinstance(layer, CacheLayerMixin) or keys is None or keys.shape[-2] != 4:
            raise ValueError(
                f"{name} keeps a recurrent or compressed state in layer {index}: it cannot be "
                "rolled back to an earlier token; choose an attention-only model"
            )
        values = layer.values
        assert values is not None
        shapes.append(
            LayerShape(keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype, keys.device)
        )
    if not shapes:
        raise ValueError(f"{name} keeps no key/value cache; choose an attention-only decoder")
    return shapes
