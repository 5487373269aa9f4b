"""Check at load whether a model can score token trees, by its config and a trial call.

A model qualifies if it caches one key and one value per token and layer, and if a token's output
depends only on its position and the tokens that its mask admits. The trial scores a sequence alone,
again among decoy siblings, and its end in calls of two tokens and of one, with any sliding window
narrowed; a model whose logits change (ALiBi, an ignored mask, a window outside the mask, a hook
that changes only the last position) is refused. In half precision, rounding would hide a small
difference, so weights are upcast to float32 for the trial.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache, PreTrainedModel

from ouroboros.core.tree import TokenTree
from ouroboros.engine.cache import LayerShape, ModelInfo, cache_argument, logit_error, tolerance
from ouroboros.engine.masks import Layout, dense

LENGTH = 60  # tokens of the trial
TRIAL_WINDOW = 2  # shorter than the trial's sequence
HALF = (torch.bfloat16, torch.float16)
HALF_BOUND = 0.25  # `largest_error` allowed between calls of the same modules in half precision
WIDENED_BYTES = 4 << 30  # larger weights (in float32) are upcast module by module
log = logging.getLogger(__name__)
ROTARY = "choose a model with rotary or learned positions"


def check_tree_support(model: PreTrainedModel) -> ModelInfo:
    """Return the `ModelInfo` of a model. Raises `ValueError` with the reason if it cannot score
    trees."""
    config, name = model.config.get_text_config(), type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; a decoder-only causal LM is needed")
    max_len = position_limit(config)
    types = tuple(getattr(config, "layer_types", None) or ())
    if unknown := set(types) - {"full_attention", "sliding_attention"}:
        chunked = unknown == {"chunked_attention"}
        why = "tree masks cannot express chunks" if chunked else "their state cannot be rolled back"
        raise ValueError(
            f"{name} has layers of type {', '.join(sorted(unknown))}: {why}; choose a model whose "
            "layers are all full or sliding attention"
        )
    window = getattr(config, "sliding_window", None)
    for key, value in config.to_dict().items():
        local = key.endswith(("window", "window_size")) and isinstance(value, int)
        if local and 1 < value < max_len and value != window:
            raise ValueError(
                f"{name} limits attention by {key}={value}, which a tree's mask cannot express; "
                "choose a model with full or sliding attention"
            )
    if (types and "sliding_attention" not in types) or not window or window >= max_len:
        window = None
    mixed = types if window and len(set(types)) > 1 else None
    weight = (embed := model.get_input_embeddings()).weight
    assert isinstance(weight, torch.Tensor)
    device = weight.device
    if weight.is_meta:  # accelerate loads offloaded weights when they are needed
        hook = getattr(embed, "_hf_hook", None)
        device = torch.device(getattr(hook, "execution_device", device))
    info = ModelInfo(max_len, window, mixed, len(weight), device, model.dtype, [])
    return _try_tree(model, info)


@torch.inference_mode()
def _try_tree(model: PreTrainedModel, info: ModelInfo) -> ModelInfo:
    """Check that a token has the same logits in a chain, in a tree with decoys and in short calls;
    return the info with `layers`, `text` and `rounding`. Raises `ValueError` if not."""
    name = type(model).__name__
    narrow = replace(info, sliding_window=info.sliding_window and TRIAL_WINDOW)
    with _narrowed(model, info.sliding_window):
        chain = _plausible_text(model, info)
        (tree, path), cache = trial_tree(chain, 6 * len(chain) // 5), DynamicCache()
        positions = range(len(chain))
        rounded = _logits(model, info, chain, positions, None, cache)
        if not (rounded < torch.inf).all():
            why = "its weights are damaged: copy or download them again"
            if info.dtype == torch.float16:
                why = "its activations overflow: load it in bfloat16 or float32"
            raise ValueError(f"{name} has NaN or infinite logits in {info.dtype}, {why}")
        shapes = _cache_shapes(cache, name, len(chain))
        with _widened(model) as dtype:
            mask = dense(Layout(0, [], tree), replace(narrow, dtype=dtype))
            past = DynamicCache()
            plain = _logits(model, info, chain, positions, None, past)
            among = _logits(model, info, tree.tokens, tree.depths(), mask, DynamicCache())
            if dtype in HALF:  # not upcast: compare with other orders of additions instead
                half, parts, other = len(chain) // 2, list[torch.Tensor](), DynamicCache()
                for own in (slice(0, half), slice(half, None)):
                    parts.append(_logits(model, info, chain[own], positions[own], None, other))
                rounded = torch.cat(parts, dim=1)
            rounding = logit_error(rounded[:, 1:], plain[:, 1:])
            info = replace(info, layers=shapes, text=chain, rounding=rounding)
            moved_by, bound = logit_error, tolerance(dtype)
            if dtype in HALF:
                moved_by = largest_error
                bound = max(HALF_BOUND, 2 * moved_by(rounded[:, 1:], plain[:, 1:]))
            error = moved_by(among[:, path][:, 1:], plain[:, 1:])
            if error < bound:
                past.crop(-4)
                for end in (-2, -1):  # two tokens, then one
                    begin = 2 * end
                    few = _logits(model, info, chain[begin:end], positions[begin:end], None, past)
                    if not (moved := moved_by(few, plain[:, begin:end])) < bound:
                        raise ValueError(
                            f"{name} gives other logits in short calls than in longer ones (they "
                            f"move by {moved:.2g} standard deviations), as with a hook that "
                            "changes only the first or the last position: trees cannot be scored; "
                            "remove such hooks"
                        )
    if not error < bound:
        raise ValueError(
            f"{name} does not follow an explicit attention mask with explicit positions (its "
            f"logits move by {error:.2g} standard deviations among masked tokens, as with ALiBi "
            "position biases or a sliding window that its masks do not keep): trees cannot be "
            f"scored; {ROTARY}"
        )
    return info


def trial_tree(text: Sequence[int], nodes: int) -> tuple[TokenTree, list[int]]:
    """Return a tree of `nodes` nodes, and its longest path, which spells the start of the text. A
    sixth of the nodes are decoys below the root and half-way, so that slots and positions differ.

    >>> trial_tree("abcde", 6)[0].parents, trial_tree("abcde", 6)[1]
    ((-1, 0, 0, 2, 3, 4), [0, 2, 3, 4, 5])
    """
    path, tokens, parents, decoys = list[int](), list[int](), list[int](), nodes // 6
    siblings = {1: (decoys + 1) // 2, (nodes - decoys) // 2: decoys // 2}
    for place, token in enumerate(text[: nodes - decoys]):
        parents += path[-1:] * (1 + siblings.get(place, 0)) or [-1]
        tokens += [*[text[-1]] * (len(parents) - len(tokens) - 1), token]
        path.append(len(tokens) - 1)
    return TokenTree(tuple(tokens), tuple(parents)), path


def _plausible_text(model: PreTrainedModel, info: ModelInfo) -> tuple[int, ...]:
    """Return the tokens of a trial: random ids, replaced twice by tokens that the model itself
    draws after them, so that its activations are as in use. On text that it never meets, a
    model's rounding in half precision can exceed the spread of its logits."""
    draw = torch.Generator().manual_seed(0)
    length = min(LENGTH, info.max_len)
    text = torch.randint(info.vocab_size, (length,), generator=draw)
    for _ in range(2):
        logits = _logits(model, info, text.tolist(), range(length), None, DynamicCache())[0].cpu()
        uniform = torch.rand(logits.shape, generator=draw, dtype=logits.dtype)
        text[1:] = (logits - uniform.log().neg().log()).argmax(-1)[:-1]
    return tuple(text.tolist())


@contextmanager
def _widened(model: PreTrainedModel) -> Iterator[torch.dtype]:
    """Context manager: upcast half-precision weights to float32, unless they are quantised, sharded
    or offloaded. Weights of more than `WIDENED_BYTES`, or half of the free memory, are upcast
    module by module, in each of its calls, if that works. Yields the dtype of the computation."""
    owners = [m for m in model.modules() if any(w.dtype in HALF for w in weights_of(m))]
    kept = {w: w.data for owner in owners for w in weights_of(owner) if w.dtype in HALF}
    if not kept or any(type(w.data) is not torch.Tensor or w.is_meta for w in model.parameters()):
        yield model.dtype
        return

    def widen(module: nn.Module, *_) -> None:
        for weight in filter(kept.__contains__, weights_of(module)):
            weight.data = kept[weight].float()

    def restore(module: nn.Module, *_) -> None:
        for weight in filter(kept.__contains__, weights_of(module)):
            weight.data = kept[weight]

    hooks, dtype = list[RemovableHandle](), torch.float32
    on_gpu = model.device.type == "cuda"
    free = torch.cuda.mem_get_info(model.device)[0] if on_gpu else psutil.virtual_memory().available

    def release() -> None:
        for hook in hooks:
            hook.remove()
        for owner in owners:
            restore(owner)

    try:
        try:
            if 4 * sum(weight.numel() for weight in kept) <= min(WIDENED_BYTES, free // 2):
                for owner in owners:
                    widen(owner)
            else:
                for owner in owners:
                    hooks.append(owner.register_forward_pre_hook(widen))
                    hooks.append(owner.register_forward_hook(restore))
                model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device))
        except RuntimeError as error:  # no memory, or a weight that another module uses
            log.warning("weights are not upcast for the trial: %s", str(error).splitlines()[0])
            dtype = model.dtype
            release()
        yield dtype
    finally:
        release()


def weights_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Return the parameters and buffers that a module holds itself."""
    return itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))


@contextmanager
def _narrowed(model: PreTrainedModel, window: int | None) -> Iterator[None]:
    """Context manager: set the sliding window to TRIAL_WINDOW in every submodule's config in which
    it is `window` (None: change nothing)."""
    configs: list[Any] = [getattr(part, "config", None) for part in model.modules()]
    wide = {id(c): c for c in configs if window and getattr(c, "sliding_window", None) == window}
    try:
        for config in wide.values():
            config.sliding_window = TRIAL_WINDOW
        yield
    finally:
        for config in wide.values():
            config.sliding_window = window


def _logits(model, info: ModelInfo, ids, positions, mask, cache) -> torch.Tensor:
    """Make a trial call and return its logits, in float64. Raises `ValueError` with the reason if
    the call fails."""
    name = type(model).__name__
    input_ids = torch.tensor([list(ids)], device=info.device)
    try:
        out = model(
            input_ids=input_ids,
            position_ids=torch.tensor([list(positions)], device=info.device),
            attention_mask=mask,
            **{cache_argument(model): cache},
            use_cache=True,
            logits_to_keep=0,
        )
    except Exception as error:
        try:
            model(input_ids=input_ids)
        except Exception as plain:
            first_line = (str(plain).strip().splitlines() or [""])[0]
            raise ValueError(
                f"{name} cannot be called in {info.dtype} ({type(plain).__name__}: "
                f"{first_line}): choose another dtype or, for experts, load it with "
                'experts_implementation="eager"'
            ) from error
        reason = f"{type(error).__name__}: {error}"
        if "position_ids" not in inspect.signature(model.forward).parameters:
            reason = "its forward takes no position_ids, as with ALiBi biases"
        raise ValueError(
            f"{name} does not accept explicit masks, positions and a cache ({reason}): trees "
            f"cannot be scored; {ROTARY}"
        ) from error
    return out.logits.double()


def largest_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference between two calls' logits, in standard deviations of
    `expected`."""
    return ((found - expected).abs().max() / expected.std().clamp_min(1e-6)).item()


def _cache_shapes(cache: DynamicCache, name: str, count: int) -> list[LayerShape]:
    """Return the layer shapes of a KV cache of `count` tokens. Raises `ValueError`, with the
    model's `name`, if a layer caches anything but a key and a value for each token."""
    shapes = []
    for index, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.shape[-2] != count:
            raise ValueError(
                f"{name} keeps a recurrent or compressed state in layer {index}: it cannot be "
                "rolled back to an earlier token; choose an attention-only model"
            )
        _, heads, _, width = keys.shape
        shapes.append(LayerShape(heads, width, values.shape[-1], keys.dtype, keys.device))
    if not shapes:
        raise ValueError(f"{name} keeps no key/value cache; choose an attention-only decoder")
    return shapes


def position_limit(config) -> int:
    """Return how many positions a text model's config allows; 2**30 without a limit."""
    limits = [getattr(config, key, None) for key in ("max_position_embeddings", "n_positions")]
    limit = next((value for value in limits if value and value > 0), 1 << 30)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, dict):
        return limit
    key, kind = "original_max_position_embeddings", rope.get("rope_type") or rope.get("type")
    original = rope.get(key) or getattr(config, key, None) or limit
    if kind == "longrope":
        return min(limit, original)  # longer sequences rescale every position
    if kind == "linear":
        return int(limit * rope["factor"])
    if kind == "yarn":
        return max(limit, int(original * (rope.get("factor") or 1)))
    return limit  # "dynamic" too: beyond, angles depend on the longest sequence so far
