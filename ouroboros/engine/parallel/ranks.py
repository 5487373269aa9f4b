"""Ranks, the processes that decode together, and the messages between them.

Invariant: every rank takes part in every exchange, in the same order. If a rank exits or sends a
message of another kind than expected, the others raise `RankLost`; none continues alone.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # time for a rank to compile or to load a large model
BLOCK = 1024  # bytes of the first block of each message: those of most steps fit
LABEL = 5  # bytes of this block for the kind of message and its length


class RankLost(BaseException):
    """Raised if another rank has exited or is out of step. Not an `Exception`, so that a run does
    not treat it as a failed completion and continue."""


class Ranks:
    """The processes that decode together; this process is number `rank` of `size`.

    This base class is a single process.
    """

    rank, size = 0, 1

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order; they must be picklable."""
        return [value]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank; it must be picklable."""
        return value


class ProcessGroup(Ranks):
    """The processes started by torchrun. gloo sends their messages from host memory."""

    def __init__(self, store: dist.Store) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store = store

    @classmethod
    def join(cls) -> ProcessGroup:
        """Join the other ranks. Raises `ValueError` outside of torchrun."""
        if "WORLD_SIZE" not in os.environ:
            raise ValueError(
                "parallel=tree needs a process for each device: torchrun --nproc-per-node 2 "
                "-m ouroboros bench parallel=tree ..."
            )
        store, rank, size = next(dist.rendezvous("env://"))
        store.set_timeout(TIMEOUT)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        return cls(store)

    def is_first(self, event: str) -> bool:
        """Return whether this rank is the first to report an event (True if the store is gone)."""
        try:
            return self._store.add(f"ouroboros/{event}", 1) == 1
        except RuntimeError:
            return True

    def all_gather(self, value: T) -> list[T]:
        """See `Ranks.all_gather`. Raises `RankLost` if another rank is out of step."""
        return [pickle.loads(message) for message in self._exchange(b"g", pickle.dumps(value))]

    def broadcast(self, value: T) -> T:
        """See `Ranks.broadcast`. Raises `RankLost` if another rank is out of step."""
        messages = self._exchange(b"b", pickle.dumps(value) if self.rank == 0 else b"")
        return value if self.rank == 0 else pickle.loads(messages[0])

    def _exchange(self, kind: bytes, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, of any length, in rank order.

        Every rank first sends a block of fixed size: the kind of its message, its length and its
        first bytes. This reveals ranks that are out of step. If any message is longer than its
        block, every rank then sends its whole message.
        """
        rows = self._gather(kind + len(message).to_bytes(4, "little") + message, BLOCK)
        if any(row[:1] != kind for row in rows):
            raise RankLost(
                "the ranks no longer take the same steps: one of them failed, or its drafts differ"
            )
        lengths = [int.from_bytes(row[1:LABEL], "little") for row in rows]
        if max(lengths) > BLOCK - LABEL:
            rows = self._gather(bytes(LABEL) + message, LABEL + max(lengths))
        return [row[LABEL : LABEL + length] for row, length in zip(rows, lengths, strict=True)]

    def _gather(self, message: bytes, size: int) -> list[bytes]:
        """Return the first `size` bytes of each rank's message, padded with zeros."""
        padded = bytearray(message[:size].ljust(size, b"\0"))
        own = torch.frombuffer(padded, dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.size)]
        try:
            dist.all_gather(every, own)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". This is")[0]
            reason = re.sub(r"^\[[^]]*\] ", "", reason)  # drops gloo's source file and line
            raise RankLost(f"another rank is gone ({reason})") from error
        return [row.numpy().tobytes() for row in every]


def own_gpu() -> int | None:
    """Return the index of this process's GPU (shared if there are too few); None without GPUs."""
    devices = torch.cuda.device_count()
    return int(os.environ.get("LOCAL_RANK", "0")) % devices if devices else None


def all_succeed(ranks: Ranks, work: Callable[[], T]) -> T:
    """Run `work` on every rank and return its value, unless it failed on any rank.

    A failed rank raises its own error; the others raise a `ValueError` that names the rank.
    """
    value, failure = None, None
    try:
        value = work()
    except Exception as error:
        failure = error
    reasons = ranks.all_gather(failure and (str(failure).strip() or type(failure).__name__))
    if failure is not None:
        raise failure
    for rank, reason in enumerate(reasons):
        if reason is not None:
            raise ValueError(f"rank {rank}: {reason}")
    return value  # type: ignore[return-value]
