"""The cached wrapper of a model between calls of `generate`, and its lock.

Both are stored on the model itself and freed with it (a weak dictionary would keep them forever:
its values hold their key); a copy of a model starts without. Invariant: after a call the model has
the attention implementation and the training mode that its owner set.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from transformers import PreTrainedModel

from ouroboros.engine.model import CachedModel

ATTRIBUTE = "_ouroboros_wrappers"
Model = PreTrainedModel | CachedModel


class WrapperCache:
    """A lock, and a model's wrappers by the role that it plays.

    `wrappers` holds, by role, the model's fingerprint, the wrapper, and the attention
    implementation that the wrapper needs.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wrappers: dict[Literal["target", "draft"], tuple[tuple, CachedModel, str]] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> WrapperCache:
        """Return a model's cache, made on first use; two threads get the same one."""
        return vars(model).get(ATTRIBUTE) or vars(model).setdefault(ATTRIBUTE, cls())

    def __deepcopy__(self, memo: dict) -> WrapperCache:
        return WrapperCache()

    def __reduce__(self) -> tuple:
        return WrapperCache, ()


def check_model(name: str, model: object) -> None:
    """Raise `ValueError` for an argument that is no loaded model, such as a hub id."""
    if not isinstance(model, CachedModel | torch.nn.Module):
        raise ValueError(
            f"{name}={model!r:.60} is a {type(model).__name__}, not a model: load it, as by "
            "AutoModelForCausalLM.from_pretrained"
        )


@contextmanager
def acquire(target: Model, draft: Model | None) -> Iterator[tuple[CachedModel, CachedModel | None]]:
    """Yield both models wrapped for tree scoring, holding their locks.

    A `CachedModel` is passed through. Another model is checked once, and again only if its weights,
    device or attention were replaced. Raises `ValueError` for an architecture that cannot score
    trees.
    """
    with locked(target, draft), ExitStack() as stack:
        wrapped = None if draft is None else stack.enter_context(_wrapped(draft, "draft"))
        yield stack.enter_context(_wrapped(target, "target")), wrapped


@contextmanager
def locked(*models: Model | None) -> Iterator[None]:
    """Hold the locks of models; other threads wait."""
    plain = [m.model if isinstance(m, CachedModel) else m for m in models if m is not None]
    with ExitStack() as stack:
        # Always in the same order, so that two threads cannot each hold one lock.
        for model in sorted({id(m): m for m in plain}.values(), key=id):
            stack.enter_context(WrapperCache.of(model).lock)
        yield


@contextmanager
def _wrapped(model: Model, role: Literal["target", "draft"]) -> Iterator[CachedModel]:
    """Yield the model's wrapper, emptied; then restore attention and training mode."""
    if isinstance(model, CachedModel):
        model.packed.check(closely=True)
        yield model
        return
    attention, training = _attention(model), model.training
    wrappers = WrapperCache.of(model).wrappers
    try:
        weights = (*model.parameters(), *model.buffers())
        fingerprint = (
            tuple(attention.items()),
            *((_address(weight), weight.device, weight.dtype) for weight in weights),
        )
        known, wrapper, needed = wrappers.get(role, ((), None, ""))
        if wrapper is None or wrapper.model is not model or known != fingerprint:
            wrappers.pop(role, None)
            wrapper = CachedModel(model)
            needed = model.config.get_text_config()._attn_implementation
            wrappers[role] = fingerprint, wrapper, needed
        elif needed != model.config.get_text_config()._attn_implementation:
            model.set_attn_implementation(needed)
        model.eval()
        wrapper.empty()  # the weights may have been trained since
        yield wrapper
    finally:
        if attention != _attention(model):
            model.set_attn_implementation(attention)
        model.train(training)


def _attention(model: PreTrainedModel) -> dict[str, str]:
    """The attention implementation of a model and of its parts, as transformers takes it."""
    config = model.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    own = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **own}


def _address(weight: torch.Tensor) -> int:
    """Where a weight is stored; captured graphs read it there."""
    try:
        return weight.data_ptr()
    except RuntimeError:  # a quantised tensor has no storage of its own
        return id(weight)
