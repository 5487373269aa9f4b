"""The processes (ranks) that share one decoding, and the few bytes that they exchange.

Invariant: every rank takes part in every exchange, in the same order. If a rank is gone, or decodes
something else, the others raise `RankLost`: none goes on alone.
"""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # a rank may take a while to compile, or to load a large model
BLOCK = 256  # bytes in which each message, or its beginning, is sent
LABEL = 5  # of them: the kind of message and its length
OUT_OF_STEP = (
    "the ranks no longer take the same steps: one of them failed by itself, or drafted otherwise"
)


class RankLost(BaseException):
    """Another rank is gone or decodes something else. Not an `Exception`, so that a run that
    records a failed sample and continues does not continue from this."""


class Ranks:
    """The processes that share one decoding; this process is number `rank` of `size`.

    In this base class there is only one process.
    """

    rank, size = 0, 1

    def all_gather(self, message: bytes) -> list[bytes]:
        """Return every rank's message by rank; all have the same length."""
        return [message]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank; it must be picklable."""
        return value


class ProcessGroup(Ranks):
    """The processes that torchrun started. Messages lie in host memory and are sent by gloo."""

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
        """Return whether this rank is the first to ask about an event (True if nobody answers)."""
        try:
            return self._store.add(f"ouroboros/{event}", 1) == 1
        except RuntimeError:
            return True

    def all_gather(self, message: bytes) -> list[bytes]:
        """See `Ranks.all_gather`. Raises `RankLost` if the other ranks do something else."""
        messages = self._exchange(b"g", message)
        if any(len(other) != len(message) for other in messages):
            raise RankLost(OUT_OF_STEP)
        return messages

    def broadcast(self, value: T) -> T:
        """See `Ranks.broadcast`. Raises `RankLost` if the other ranks do something else."""
        messages = self._exchange(b"b", pickle.dumps(value) if self.rank == 0 else b"")
        return value if self.rank == 0 else pickle.loads(messages[0])

    def _exchange(self, kind: bytes, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, in rank order. A message may have any length.

        First, every rank sends a block of fixed size that contains the kind of its message, its
        length and its beginning; so ranks that are out of step notice it. If any message does not
        fit into its block, every rank then sends its whole message.
        """
        rows = self._gather(kind + len(message).to_bytes(4, "little") + message, BLOCK)
        if any(row[:1] != kind for row in rows):
            raise RankLost(OUT_OF_STEP)
        lengths = [int.from_bytes(row[1:LABEL], "little") for row in rows]
        if max(lengths) > BLOCK - LABEL:
            rows = self._gather(bytes(LABEL) + message, LABEL + max(lengths))
        return [row[LABEL : LABEL + length] for row, length in zip(rows, lengths, strict=True)]

    def _gather(self, message: bytes, size: int) -> list[bytes]:
        """Return the first `size` bytes of every rank's message, padded with zeros."""
        padded = bytearray(message[:size].ljust(size, b"\0"))
        own = torch.frombuffer(padded, dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.size)]
        try:
            dist.all_gather(every, own)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". This is")[0]
            reason = re.sub(r"^\[[^]]*\] ", "", reason)  # where in gloo's sources
            raise RankLost(f"another rank is gone ({reason})") from error
        return [row.numpy().tobytes() for row in every]


def own_gpu() -> int | None:
    """Return the index of this process's GPU; processes beyond their number share. None without."""
    devices = torch.cuda.device_count()
    return int(os.environ.get("LOCAL_RANK", "0")) % devices if devices else None


def all_succeed(ranks: Ranks, work: Callable[[], T]) -> T:
    """Do `work` on every rank and return its value, unless it failed on one of them.

    A failed rank raises its own error, the others a `ValueError` that names the rank.
    """
    value, failure = None, None
    try:
        value = work()
    except Exception as error:
        failure = error
    reason = "" if failure is None else (str(failure).strip() or type(failure).__name__)
    reasons = ranks.all_gather(reason.encode()[:512].ljust(512, b"\0"))
    if failure is not None:
        raise failure
    for rank, other in enumerate(reasons):
        if said := other.rstrip(b"\0").decode(errors="ignore"):
            raise ValueError(f"rank {rank}: {said}")
    return value  # type: ignore[return-value]


def message_ms(ranks: Ranks, *, size: int = 512, repeats: int = 25) -> float:
    """Return rank 0's median milliseconds of gathering messages of `size` bytes, on every rank."""
    times_ms = []
    for _ in range(repeats):
        started = time.perf_counter()
        ranks.all_gather(bytes(size))
        times_ms.append(1e3 * (time.perf_counter() - started))
    return ranks.broadcast(median(times_ms))
