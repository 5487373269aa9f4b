"""The processes that share one decoding, and the few bytes that they tell each other.

Invariant: every rank takes part in every exchange, in the same order. A rank that is gone, or that
decodes something else, ends the run (`RankLost`): no rank goes on alone.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist

T = TypeVar("T")
PATIENCE = timedelta(minutes=30)  # a rank may compile, or load a large model, for a while


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
        """See `Ranks.exchange`."""
        own = torch.from_numpy(message).to(self._device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        self._done(lambda: dist.all_gather(every, own))
        return [one.cpu().numpy() for one in every]

    def broadcast(self, data: bytes) -> bytes:
        """See `Ranks.broadcast`."""
        length = torch.tensor([len(data)], device=self._device)
        self._done(lambda: dist.broadcast(length, 0))
        body = torch.zeros(int(length), dtype=torch.uint8, device=self._device)
        if self.rank == 0 and data:
            body.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if len(body):
            self._done(lambda: dist.broadcast(body, 0))
        return body.cpu().numpy().tobytes()

    @staticmethod
    def _done(work: Callable[[], object]) -> None:
        try:
            work()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". This is")[0]
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
