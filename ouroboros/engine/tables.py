"""Pack the inputs of a captured joint call, with a table in place of the attention mask.

Each sequence has a slab of consecutive slots in the shared pools. Its *columns* are its cached tree
nodes and fed tokens; the slots before them hold the context. A *block* is a range of tokens of one
sequence that one program of the attention kernel handles. Row i of the table (int32) describes
token i to the kernel; entries 1 and 2 are counted from the slab's first slot:

    0  the slab's first slot               3      the number of columns
    1  the first slot attended to          6 ...  the mask over the columns, one bit each
    2  the slot of the first column

Entries 4 and 5 of row i do not concern token i: they are block i's first token and its number of
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ouroboros.engine.cache import ModelInfo, Slab
from ouroboros.engine.eager import MOST_HELD
from ouroboros.engine.masks import Layout, Masks
from ouroboros.engine.triton_attention import HEAD, most_blocks


def _table_shape(info: ModelInfo, size: int) -> tuple[int, int, int]:
    """Return (tables, tokens, entries) for calls padded to `size` tokens. If layer types are mixed
    there are two tables, the second for sliding layers."""
    return 1 + (info.layer_types is not None), size, HEAD + -(-(MOST_HELD + size) // 32)


def pack_jointly(
    parts: Sequence[tuple[Slab, Layout]], info: ModelInfo, *, size: int, most: int, spare: int
) -> np.ndarray | None:
    """Return the inputs of a joint call, padded to `size` tokens, as one array of int64 words. A
    block has at most `most` tokens; return None if the sequences need more blocks than
    `most_blocks`.

    In order: ids, rows of the logits, positions and slots (`size` words each), and the tables.
    Padding is written to the slot `spare` and attends only to slot 0.
    """
    shape = _table_shape(info, size)
    words = np.zeros(4 * size + -(-int(np.prod(shape)) // 2), dtype=np.int64)
    ids, rows, positions, slots = words[: 4 * size].reshape(4, size)
    table = words[4 * size :].view(np.int32)[: np.prod(shape)].reshape(shape)
    slots[:] = spare
    table[:, :, 3] = table[:, :, HEAD] = 1
    end, kept, blocks = 0, list[int](), list[tuple[int, int]]()
    for slab, layout in parts:
        fed, places = layout.known_ids(info.vocab_size), layout.positions()
        start, end = end, end + len(fed)
        ids[start:end], positions[start:end] = fed, places[layout.held :]
        slots[start:end] = slab.first + layout.base + layout.held + np.arange(len(fed))
        kept += [start + row for row in layout.rows]
        blocks += [(at, min(most, end - at)) for at in range(start, end, most)]
        seen, first = layout.seen(), np.zeros(len(fed), dtype=np.int64)
        for number, own in enumerate(table[:, start:end], start=1):
            if info.sliding_window is not None and number == len(table):
                first = np.maximum(positions[start:end] + 1 - info.sliding_window, 0)
                seen = seen & (places >= first[:, None])
            own[:, 0], own[:, 1], own[:, 2], own[:, 3] = slab.first, first, layout.base, len(places)
            bits = np.packbits(seen, axis=1, bitorder="little")
            own[:, HEAD:].view(np.uint8)[:, : bits.shape[1]] = bits
    blocks += [(at, min(most, size - at)) for at in range(end, size, most)]
    if len(blocks) > most_blocks(size, most):
        return None
    rows[: len(kept)] = kept
    table[:, : len(blocks), 4:6] = blocks
    return words


def unpack_jointly(words: torch.Tensor, info: ModelInfo, size: int) -> tuple[Any, ...]:
    """Return views of the inputs packed in `words`: ids, rows, positions and slots [size], and the
    tables as masks for the model, [1, 1, size, entries] (a dict by layer type if types are
    mixed)."""
    ids, rows, positions, slots = words[: 4 * size].view(4, size)
    shape = _table_shape(info, size)
    tables = words[4 * size :].view(torch.int32)[: math.prod(shape)].view(shape)[:, None, None]
    masks: Masks = tables[0]
    if info.layer_types is not None:
        masks = {"full_attention": tables[0], "sliding_attention": tables[1]}
    return ids, rows, positions, slots, masks
