"""Trimmed output heads: a draft model that scores only some ids (FR-Spec, arXiv 2502.14856).

The head's product then reads a few thousand rows instead of the whole vocabulary's. The target
still verifies over all ids, so nothing is lost: an id that the head lacks is never drafted.

Invariant: the given model is not changed. The trimmed model is a shallow copy that shares all
modules but the head.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import cached_file

from ouroboros.core.select import NO_CHOICE, Head
from ouroboros.engine.loading import of_tokenizer
from ouroboros.engine.quantised import INT8, Int8Linear, quantised_by

FILE = "head_ids.json"
DraftHead = int | Literal["auto"] | Sequence[int] | None


def listed_ids(name: str, head: DraftHead, options: Mapping | None = None) -> DraftHead:
    """Replace "auto" and a number by ids of the model's `FILE`: all of them, or the first ones.

    `name` is the model's folder or hub id, `options` are those of `from_pretrained`. Without the
    file, "auto" becomes None, and a number stays. Raises `ValueError` for an unreadable file, and
    for a number above its length.
    """
    if head is None or not isinstance(head, int | str) or Path(name).is_file():
        return None if head == "auto" else head
    quiet = {f"_raise_exceptions_for_{kind}": False for kind in ("missing_entries", "gated_repo")}
    quiet["_raise_exceptions_for_connection_errors"] = False
    path = cached_file(name, FILE, **quiet, **of_tokenizer(options or {}))  # type: ignore[arg-type]
    if path is None:
        return None if head == "auto" else head
    try:
        ids = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        ids = None
    if not isinstance(ids, list):
        raise ValueError(f"{path} is no JSON list of ids: delete it, or run ouroboros distill")
    if head != "auto" and head > len(ids):
        raise ValueError(f"draft_head={head}: {path} lists {len(ids)} ids; give at most as many")
    return ids if head == "auto" else ids[:head]


def trim_head(
    model: PreTrainedModel, head: int | Sequence[int], tokenizer=None
) -> tuple[PreTrainedModel, Head]:
    """Return a shallow copy of a model that scores only the ids `head`, and these ids.

    A number stands for that many ids: end-of-sequence and special ids, then 0, 1, 2, ..., which for
    BPE are roughly the most frequent ones. Raises `ValueError` for ids outside the vocabulary, and
    for a head that cannot be copied.
    """
    whole = model.get_output_embeddings()
    plain = isinstance(whole, nn.Linear) and type(whole.weight) is nn.Parameter
    if not plain or whole.weight.is_meta or not whole.weight.is_floating_point():
        raise ValueError(
            f"the output head of {type(model).__name__} cannot be trimmed, as it is no linear "
            "layer, quantised or offloaded: give draft_head=null"
        )
    vocab = len(whole.weight)
    if isinstance(head, int):
        if not 1 <= head <= vocab:
            raise ValueError(f"draft_head={head}: give 1 to {vocab}, the vocabulary size, or null")
        first = dict.fromkeys([*_special_ids(model, tokenizer), *range(vocab)])
        head = list(islice((token for token in first if token < vocab), head))
    strange = [token for token in head if type(token) is not int or not 0 <= token < vocab]
    if strange or not head or len(set(head)) < len(head):
        what = f"id {strange[0]!r}" if strange else "an id twice" if head else "no id"
        raise ValueError(
            f"draft_head (or {FILE}) has {what}: give different ids from 0 to {vocab - 1}"
        )
    ids = torch.tensor(sorted(head), device=whole.weight.device)
    trimmed = copy.copy(model)
    trimmed._modules = dict(model._modules)
    with torch.no_grad():
        linear: Any = nn.Linear(whole.in_features, len(ids), bias=False, device="meta")
        for name, weight in whole.named_parameters(recurse=False):
            linear.register_parameter(name, nn.Parameter(weight[ids], requires_grad=False))
    if quantised_by(model) == INT8 and ids.is_cpu:
        linear = Int8Linear(linear)
    trimmed.set_output_embeddings(linear)
    named = torch.cat([ids, ids.new_tensor([NO_CHOICE])])
    return trimmed.eval(), Head(named, 1 + int(ids[-1]))


def _special_ids(model: PreTrainedModel, tokenizer) -> list[int]:
    """Return the ids that end a text, and those of special tokens, such as a chat template's."""
    ends: Any = getattr(model.generation_config, "eos_token_id", None)
    found = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    if tokenizer is not None:
        template = str(getattr(tokenizer, "chat_template", None) or "")
        found += tokenizer.all_special_ids
        found += [i for piece, i in tokenizer.get_added_vocab().items() if piece in template]
    return found
