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
from typing import Protocol, TypeVar

import numpy as np
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


class Ranks(Protocol):
    """The processes that share a decoding: this one is `rank` of `size`."""

    rank: int
    size: int

    def all_gather(self, message: np.ndarray) -> list[np.ndarray]:
        """Return every rank's message by rank; all are [bytes] uint8 of one length."""
        ...

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank; it must be picklable."""
        ...


class SingleRank:
    """One process by itself."""

    rank, size = 0, 1

    def all_gather(self, message: np.ndarray) -> list[np.ndarray]:
        return [message]

    def broadcast(self, value: T) -> T:
        return value


class ProcessGroup:
    """The processes that torchrun started: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, store: dist.Store) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store = store
        self._device = torch.device("cpu")
        if dist.get_backend() == "nccl":
            self._device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def join(cls) -> ProcessGroup:
        """Join the other ranks, with one process for each GPU. Raises `ValueError` outside of
        torchrun."""
        if "WORLD_SIZE" not in os.environ:
            raise ValueError(
                "parallel=tree needs a process for each device: torchrun --nproc-per-node 2 "
                "-m ouroboros bench parallel=tree ..."
            )
        if cls.on_gpus():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        store, rank, size = next(dist.rendezvous("env://"))
        store.set_timeout(TIMEOUT)
        backend = "nccl" if cls.on_gpus() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        return cls(store)

    @staticmethod
    def on_gpus() -> bool:
        """Return whether each process has a GPU of its own."""
        return torch.cuda.is_available()

    def is_first(self, event: str) -> bool:
        """Return whether this rank is the first to ask about an event (True if nobody answers)."""
        try:
            return self._store.add(f"ouroboros/{event}", 1) == 1
        except RuntimeError:
            return True

    def all_gather(self, message: np.ndarray) -> list[np.ndarray]:
        """See `Ranks.all_gather`. Raises `RankLost` if the other ranks do something else."""
        messages = self._exchange(b"g", message.tobytes())
        if any(len(other) != len(message) for other in messages):
            raise RankLost(OUT_OF_STEP)
        return [np.frombuffer(other, dtype=np.uint8) for other in messages]

    def broadcast(self, value: T) -> T:
        """See `Ranks.broadcast`. Raises `RankLost` if the other ranks do something else."""
        messages = self._exchange(b"b", pickle.dumps(value) if self.rank == 0 else b"")
        return value if self.rank == 0 else pickle.loads(messages[0])

    def _exchange(self, kind: bytes, message: bytes) -> list[bytes]:
        """Return every rank's message, of any length, by rank.

        First all send a block of one size, the kind of message, its length and its beginning, so
        that ranks that are out of step notice; then, if any is longer, the whole messages.
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
        own = torch.frombuffer(padded, dtype=torch.uint8).to(self._device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        try:
            dist.all_gather(every, own)
            return [row.cpu().numpy().tobytes() for row in every]  # NCCL's errors show here
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". This is")[0]
            reason = re.sub(r"^\[[^]]*\] ", "", reason)  # where in gloo's sources
            raise RankLost(f"another rank is gone ({reason})") from error


def all_succeed(ranks: Ranks, work: Callable[[], T]) -> T:
    """Do `work` on every rank and return its value, unless it failed on one of them.

    A failed rank raises its own error, the others a `ValueError` that names the rank.
    """
    failure: Exception | None = None
    try:
        value = work()
    except Exception as error:
        failure = error
    reason = "" if failure is None else (str(failure).strip() or type(failure).__name__)
    message = np.frombuffer(reason.encode()[:512].ljust(512, b"\0"), dtype=np.uint8)
    for rank, row in enumerate(ranks.all_gather(message)):
        if failure is None and row.any():
            reason = row.tobytes().rstrip(b"\0").decode(errors="ignore")
            raise ValueError(f"rank {rank}: {reason}")
    if failure is not None:
        raise failure
    return value


def message_ms(ranks: Ranks, *, size: int = 512, repeats: int = 25) -> float:
    """Return rank 0's median milliseconds of gathering messages of `size` bytes, on every rank."""
    message, times_ms = np.zeros(size, dtype=np.uint8), []
    for _ in range(repeats):
        started = time.perf_counter()
        ranks.all_gather(message)
        times_ms.append(1e3 * (time.perf_counter() - started))
    return ranks.broadcast(median(times_ms))
