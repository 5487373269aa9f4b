"""Keep a model's `CachedModel` wrappers, and its lock, between calls of `generate`.

They are stored in an attribute of the model and freed with it, because wrappers drop their
reference to the model between calls. A copied model starts without wrappers. Invariant: a call
restores the model's attention implementation, the training mode of each submodule, and the ids that
a draft may propose.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from transformers import PreTrainedModel

from ouroboros.engine.attention import attention_of
from ouroboros.engine.frozen import ModelChanged
from ouroboros.engine.model import CachedModel
from ouroboros.models.vocab import check_pair

ATTRIBUTE = "_ouroboros_wrappers"
Model = PreTrainedModel | CachedModel


class WrapperCache:
    """The lock of a model or a decoder, and a model's wrappers by role: "target", "draft"."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wrappers: dict[str, CachedModel] = {}

    @classmethod
    def of(cls, owner: object) -> WrapperCache:
        """Return an object's cache; create it on first use. Thread-safe."""
        own = getattr(owner, "__dict__", {})  # a decoder with __slots__ has no lock
        return own.get(ATTRIBUTE) or own.setdefault(ATTRIBUTE, cls())

    def __reduce__(self) -> tuple:  # a copy or pickle is empty
        return WrapperCache, ()


def plain_model(name: str, model: object) -> PreTrainedModel:
    """Return the transformers model, unwrapped from a `CachedModel`, a compiled or a data-parallel
    module. Raises `ValueError` for anything else, such as a hub id."""
    plain = model.model if isinstance(model, CachedModel) else model
    while isinstance(plain, torch.nn.Module) and not isinstance(plain, PreTrainedModel):
        inner = [plain._modules.get(name) for name in ("_orig_mod", "module")]
        plain = next((own for own in inner if own is not None), None)
    if not isinstance(plain, PreTrainedModel):
        raise ValueError(
            f"{name}={model!r:.60} is a {type(model).__name__}, not a model: give one of "
            "transformers, loaded as by AutoModelForCausalLM.from_pretrained"
        )
    return plain


@contextmanager
def acquire(
    target: Model,
    draft: Model | None,
    decoder: object,
    *,
    draft_context: int | None = None,
) -> Iterator[tuple[CachedModel, CachedModel | None]]:
    """Yield both models wrapped for tree scoring, holding their locks and the decoder's lock.

    The draft is limited to the target's vocabulary and, unless it is a `CachedModel`, to the last
    `draft_context` tokens of a prompt. A transformers model is read in its first call, and again
    after its weights or modules have changed (see `ModelChanged`). Raises `ValueError` for an
    architecture that cannot score trees, and for different tokenizers.
    """
    with locked(target, draft, decoder), ExitStack() as stack:
        wrapped = None
        if draft is not None:
            wrapped = stack.enter_context(_wrapped(draft, "draft", twin=draft is target))
            for name in ("width", "masked"):
                stack.callback(setattr, wrapped, name, getattr(wrapped, name))
            if not isinstance(draft, CachedModel):
                wrapped.prefill_limit = draft_context
        own = stack.enter_context(_wrapped(target, "target"))
        if wrapped is not None:
            check_pair(own, wrapped)
        yield own, wrapped


@contextmanager
def locked(*owners: object) -> Iterator[None]:
    """Context manager that holds the locks of models and decoders."""
    plain = [own.model if isinstance(own, CachedModel) else own for own in owners]
    with ExitStack() as stack:  # in a fixed order, which prevents deadlocks
        for own in sorted({id(own): own for own in plain if own is not None}.values(), key=id):
            stack.enter_context(WrapperCache.of(own).lock)
        yield


@contextmanager
def _wrapped(given: Model, role: str, *, twin: bool = False) -> Iterator[CachedModel]:
    """Yield the model's wrapper with an empty cache; then restore attention and training modes.
    `twin`: the draft is the same `CachedModel` as the target, so give it a second cache."""
    model = plain_model(role, given)
    attention, training = _attention(model), [(m, m.training) for m in model.modules()]
    wrappers = WrapperCache.of(model).wrappers
    own = given if isinstance(given, CachedModel) and not twin else None
    try:
        if own is not None:
            wrapper = own
        elif role in wrappers:
            wrapper = wrappers[role]
            wrapper.model = wrapper.engine.model = model
            try:
                wrapper.new_sequence()
            except ModelChanged:
                wrapper.refresh()
            if wrapper.attention != attention_of(model):
                model.set_attn_implementation(wrapper.attention)
        else:
            wrapper = wrappers[role] = CachedModel(model)
        model.eval()
        wrapper.empty()
        yield wrapper
    finally:
        if own is None and attention != _attention(model):
            model.set_attn_implementation(attention)
        for module, mode in training:
            module.training = mode
        if own is None and role in wrappers:
            wrapper.model = wrapper.engine.model = None  # type: ignore[assignment]


def _attention(model: PreTrainedModel) -> dict[str, str]:
    """Return {sub-config name: its attention implementation}, with the model's own under "", as
    `set_attn_implementation` accepts it."""
    config = model.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    own = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **own}
