"""The processes that share one decoding, and the few bytes that they tell each other.

Invariant: every rank takes part in every exchange, in the same order. A rank that is gone, or that
decodes something else, ends the run (`RankLost`): no rank goes on alone.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist

T = TypeVar("T")
PATIENCE = timedelta(minutes=30)  # a rank may compile, or load a large model, for a while
BLOCK = 256  # bytes in which each message, or its beginning, is sent
LABEL = 5  # of them: what kind of message it is, and how long
PARTED = (
    "the ranks no longer take the same steps: one of them failed by itself, or drafted otherwise"
)


class RankLost(BaseException):
    """Another rank is gone or decodes something else. No `Exception`: a run that takes a failed
    sample and goes on must not go on from this."""


class Ranks(Protocol):
    """The processes that share a decoding: this one is `rank` of `size`."""

    rank: int
    size: int

    def exchange(self, message: np.ndarray) -> list[np.ndarray]:
        """Return every rank's message by rank; all are [bytes] uint8 of one length."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """Return what rank 0 gives, whatever the others do."""
        ...


class Alone:
    """One process by itself."""

    rank, size = 0, 1

    def exchange(self, message: np.ndarray) -> list[np.ndarray]:
        return [message]

    def broadcast(self, data: bytes) -> bytes:
        return data


class Group:
    """The processes that torchrun started: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, store: dist.Store) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store = store
        self._device = torch.device("cpu")
        if dist.get_backend() == "nccl":
            self._device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def joined(cls) -> Group:
        """Join the others, each GPU with a process of its own. Raises `ValueError` outside of
        torchrun."""
        if "WORLD_SIZE" not in os.environ:
            raise ValueError(
                "parallel=tree needs a process for each device: torchrun --nproc-per-node 2 "
                "-m ouroboros bench parallel=tree ..."
            )
        if cls.on_gpus():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        store, rank, size = next(dist.rendezvous("env://"))
        store.set_timeout(PATIENCE)
        backend = "nccl" if cls.on_gpus() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        return cls(store)

    @staticmethod
    def on_gpus() -> bool:
        """Return whether each process has a GPU of its own."""
        return torch.cuda.is_available()

    def is_first(self, event: str) -> bool:
        """Return whether no other rank has asked this of the event; True where nobody knows."""
        try:
            return self._store.add(f"ouroboros/{event}", 1) == 1
        except RuntimeError:
            return True

    def exchange(self, message: np.ndarray) -> list[np.ndarray]:
        """See `Ranks.exchange`. Raises `RankLost` where the others do something else."""
        heads = self._blocks(b"x", message)
        if any(bytes(head[:LABEL]) != bytes(heads[0][:LABEL]) for head in heads):
            raise RankLost(PARTED)
        if len(message) <= BLOCK - LABEL:
            parts = [head[LABEL : LABEL + len(message)] for head in heads]
        else:
            parts = self._gathered(message)
        return [part.copy() for part in parts]

    def broadcast(self, data: bytes) -> bytes:
        """See `Ranks.broadcast`. Raises `RankLost` where the others do something else."""
        body = np.frombuffer(data if self.rank == 0 else b"", dtype=np.uint8)
        heads = self._blocks(b"b", body)
        if any(bytes(head[:1]) != b"b" for head in heads):
            raise RankLost(PARTED)
        length = int(heads[0][1:LABEL].view("<u4")[0])
        if length <= BLOCK - LABEL:
            return heads[0][LABEL : LABEL + length].tobytes()
        whole = torch.zeros(length, dtype=torch.uint8, device=self._device)
        if self.rank == 0:
            whole.copy_(torch.from_numpy(body.copy()))
        self._done(lambda: dist.broadcast(whole, 0))
        return whole.cpu().numpy().tobytes()

    def _blocks(self, kind: bytes, body: np.ndarray) -> list[np.ndarray]:
        """Return every rank's first block: what it is about to do, the length of its message and
        the message's beginning. Its size never varies, so ranks that have parted find it out."""
        block = np.zeros(BLOCK, dtype=np.uint8)
        block[:1] = np.frombuffer(kind, dtype=np.uint8)
        block[1:LABEL] = np.array([len(body)], dtype="<u4").view(np.uint8)
        fits = body[: BLOCK - LABEL]
        block[LABEL : LABEL + len(fits)] = fits
        return self._gathered(block)

    def _gathered(self, message: np.ndarray) -> list[np.ndarray]:
        own = torch.from_numpy(np.ascontiguousarray(message)).to(self._device)
        every = [torch.empty_like(own) for _ in range(self.size)]

        def work() -> list[np.ndarray]:
            dist.all_gather(every, own)
            return [one.cpu().numpy() for one in every]  # NCCL's errors show here

        return self._done(work)

    @staticmethod
    def _done(work: Callable[[], T]) -> T:
        try:
            return work()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". This is")[0]
            reason = re.sub(r"^\[[^]]*\] ", "", reason)  # where in gloo's sources
            raise RankLost(f"another rank is gone ({reason})") from error


def told(ranks: Ranks, value: T) -> T:
    """Return rank 0's value on every rank."""
    return pickle.loads(ranks.broadcast(pickle.dumps(value) if ranks.rank == 0 else b""))


def agreed(ranks: Ranks, work: Callable[[], T]) -> T:
    """Do `work` on every rank and return its value, if none of them failed.

    A failed rank's own error goes on there; on the others it is a `ValueError` that names the rank.
    """
    failed: Exception | None = None
    value: T
    try:
        value = work()
    except Exception as error:
        failed = error
    reason = "" if failed is None else (str(failed).strip() or type(failed).__name__)
    own = np.zeros(512, dtype=np.uint8)
    text = reason.encode()[: len(own)]
    own[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    found = [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in ranks.exchange(own)]
    if failed is not None:
        raise failed
    for rank, other in enumerate(found):
        if other:
            raise ValueError(f"rank {rank}: {other}")
    return value
