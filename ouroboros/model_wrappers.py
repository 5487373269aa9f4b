"""The cached wrapper of a model between calls of `generate`, and its lock.

Both are stored on the model itself and freed with it: between calls no wrapper refers to its model.
A copy of a model starts without. Invariant: after a call the model has the attention implementation
and each submodule the training mode that its owner set.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from transformers import PreTrainedModel

from ouroboros.engine.model import CachedModel

ATTRIBUTE = "_ouroboros_wrappers"
Model = PreTrainedModel | CachedModel


class WrapperCache:
    """A lock, and a model's wrappers by role ("target", "exact" or "draft"), each with the
    fingerprint of its weights and the attention implementation that it needs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wrappers: dict[str, tuple[tuple, CachedModel, str]] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> WrapperCache:
        """Return a model's cache, made on first use; two threads get the same one."""
        return vars(model).get(ATTRIBUTE) or vars(model).setdefault(ATTRIBUTE, cls())

    def __reduce__(self) -> tuple:  # for copies and pickles
        return WrapperCache, ()


def plain_model(name: str, model: object) -> PreTrainedModel:
    """Return the transformers model of an argument. Raises `ValueError` for anything but a loaded
    model, such as a hub id."""
    plain = model.model if isinstance(model, CachedModel) else model
    if not isinstance(plain, torch.nn.Module):
        raise ValueError(
            f"{name}={model!r:.60} is a {type(model).__name__}, not a model: load it, as by "
            "AutoModelForCausalLM.from_pretrained"
        )
    return plain  # type: ignore[return-value]


@contextmanager
def acquire(
    target: Model, draft: Model | None, *, exact: bool = False
) -> Iterator[tuple[CachedModel, CachedModel | None]]:
    """Yield both models wrapped for tree scoring, the target for `exact` calls, holding their
    locks.

    A model is checked once, and again only if its weights, device or attention were replaced.
    Raises `ValueError` for an architecture that cannot score trees.
    """
    with locked(target, draft), ExitStack() as stack:
        wrapped = None if draft is None else stack.enter_context(_wrapped(draft, "draft"))
        yield stack.enter_context(_wrapped(target, "exact" if exact else "target")), wrapped


@contextmanager
def locked(*models: Model | None) -> Iterator[None]:
    """Hold the locks of models; other threads wait."""
    plain = {id(own): own for m in models if m is not None for own in [plain_model("model", m)]}
    with ExitStack() as stack:
        for _, model in sorted(plain.items()):  # one order, so that no two threads wait for ever
            stack.enter_context(WrapperCache.of(model).lock)
        yield


@contextmanager
def _wrapped(model: Model, role: str) -> Iterator[CachedModel]:
    """Yield the model's wrapper, emptied; then restore attention and training modes."""
    if isinstance(model, CachedModel):
        model.packed.check(closely=True)
        yield model
        return
    attention, training = _attention(model), [(m, m.training) for m in model.modules()]
    wrappers, outer = WrapperCache.of(model).wrappers, None
    try:
        known, wrapper, needed = wrappers.get(role, ((), None, ""))
        if wrapper is None or known != (attention, _addresses(model)):
            wrappers.pop(role, None)
            wrapper = CachedModel(model, exact=role == "exact")
            needed = model.config.get_text_config()._attn_implementation
            # by now the engine may have moved weights that it multiplies together
            wrappers[role] = (attention, _addresses(model)), wrapper, needed
        else:
            outer = wrapper.model  # of a call that this one is nested in
        if needed != model.config.get_text_config()._attn_implementation:
            model.set_attn_implementation(needed)
        wrapper.model = wrapper.engine.model = model.eval()
        wrapper.empty()  # the weights may have been trained since
        wrapper.packed.check(closely=True)
        if role == "exact" and wrapper.packed.stale:
            wrapper.prepack()
        yield wrapper
    finally:
        if attention != _attention(model):
            model.set_attn_implementation(attention)
        for module, mode in training:
            module.training = mode
        if role in wrappers:
            wrapper = wrappers[role][1]
            wrapper.model = wrapper.engine.model = outer  # type: ignore[assignment]


def _attention(model: PreTrainedModel) -> dict[str, str]:
    """Return the attention implementations of a model and of its parts, as transformers takes
    them."""
    config = model.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    own = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **own}


def _addresses(model: PreTrainedModel) -> list[tuple]:
    """Return where weights are stored; captured graphs read them there."""
    found = []
    for weight in (*model.parameters(), *model.buffers()):
        try:
            address = weight.data_ptr()
        except RuntimeError:  # a quantised tensor has no storage of its own
            address = id(weight)
        found.append((address, weight.device, weight.dtype))
    return found
