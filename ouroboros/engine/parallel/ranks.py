"""Ranks, the processes that decode together, and the messages between them.

Invariant: every rank takes part in every exchange, in the same order. If a rank exits or sends a
message of another kind than expected, the others raise `RankLost`; none continues alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # time for a rank to compile or to load a large model


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
        return self._exchange("all_gather", value)

    def broadcast(self, value: T) -> T:
        """See `Ranks.broadcast`. Raises `RankLost` if another rank is out of step."""
        return self._exchange("broadcast", value if self.rank == 0 else None)[0]

    def _exchange(self, kind: str, value) -> list:
        """Return the values of all ranks, in rank order. Each is sent with the kind of exchange,
        which reveals ranks that are out of step."""
        every: list = [None] * self.size
        try:
            dist.all_gather_object(every, (kind, value))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". This is")[0]
            reason = re.sub(r"^\[[^]]*\] ", "", reason)  # drops gloo's source file and line
            raise RankLost(f"another rank is gone ({reason})") from error
        if any(own != kind for own, _ in every):
            raise RankLost(
                "the ranks no longer take the same steps: one of them failed, or its drafts differ"
            )
        return [value for _, value in every]


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
