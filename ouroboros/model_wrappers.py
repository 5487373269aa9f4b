"""What is kept of a model between two calls of `generate`: its examination, and whose turn it is.

It lies on the model itself and is freed with it (a weak dictionary never would: its values hold
their key); copies of a model begin without. Invariant: after a call the model has the attention
implementation and the mode (training or not) that its owner gave it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from transformers import PreTrainedModel

from ouroboros.engine.model import CachedModel

Role = Literal["target", "draft"]
PLACE = "_ouroboros_kept"


class WrapperCache:
    """A lock, and the examined forms of one model by the role that each plays."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.made: dict[Role, tuple[tuple, CachedModel, str]] = {}

    def __deepcopy__(self, memo: dict) -> WrapperCache:
        return WrapperCache()

    def __reduce__(self) -> tuple:
        return WrapperCache, ()


def check_model(name: str, model: object) -> None:
    """Raise `ValueError` for what is no loaded model, a hub id or a folder above all."""
    if not isinstance(model, CachedModel | torch.nn.Module):
        raise ValueError(
            f"{name}={model!r:.60} is a {type(model).__name__}, not a model: load it, as by "
            "AutoModelForCausalLM.from_pretrained"
        )


@contextmanager
def ready(
    target: PreTrainedModel | CachedModel, draft: PreTrainedModel | CachedModel | None
) -> Iterator[tuple[CachedModel, CachedModel | None]]:
    """Give both models as ones that score trees; other threads wait until they are given back.

    A model that was wrapped by the caller is passed through; another is examined once and again
    only if its weights, device or attention were replaced. Raises `ValueError` for an architecture
    that cannot score trees.
    """
    with turn(target, draft), ExitStack() as stack:
        small = None if draft is None else stack.enter_context(_examined(draft, "draft"))
        yield stack.enter_context(_examined(target, "target")), small


@contextmanager
def turn(*models: PreTrainedModel | CachedModel | None) -> Iterator[None]:
    """Have the models for this thread alone."""
    plain = {id(_plain(model)): _plain(model) for model in models if model is not None}
    with ExitStack() as stack:
        for one in sorted(plain):  # in one order, so that two threads never hold one each
            stack.enter_context(_kept(plain[one]).lock)
        yield


def _plain(model: PreTrainedModel | CachedModel) -> PreTrainedModel:
    return model.model if isinstance(model, CachedModel) else model


def _kept(model: PreTrainedModel) -> WrapperCache:
    found = vars(model).get(PLACE)
    if found is None:
        found = vars(model).setdefault(PLACE, WrapperCache())
    return found


@contextmanager
def _examined(model: PreTrainedModel | CachedModel, role: Role) -> Iterator[CachedModel]:
    if isinstance(model, CachedModel):
        yield model
        return
    owners, training, made = _attention(model), model.training, _kept(model).made
    try:
        state = _state(model)
        known, cached, ours = made.get(role, ((), None, ""))
        if cached is None or cached.model is not model or known != state:
            made.pop(role, None)
            cached = CachedModel(model)
            made[role] = state, cached, model.config.get_text_config()._attn_implementation
        elif ours != model.config.get_text_config()._attn_implementation:
            model.set_attn_implementation(ours)
        model.eval()
        cached.empty()  # its weights may have learned since
        yield cached
    finally:
        if owners != _attention(model):
            model.set_attn_implementation(owners)
        model.train(training)


def _attention(model: PreTrainedModel) -> dict[str, str]:
    """The attention implementation of a model and of its parts, as transformers takes it."""
    config = model.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    own = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **own}


def _state(model: PreTrainedModel) -> tuple:
    """What an examination, and a captured graph, hold for: where each weight lies, and the rest."""
    weights = (*model.parameters(), *model.buffers())
    return (tuple(_attention(model).items()), *((_place(w), w.device, w.dtype) for w in weights))


def _place(weight) -> int:
    try:
        return weight.data_ptr()
    except RuntimeError:  # a quantised tensor has no storage of its own
        return id(weight)
