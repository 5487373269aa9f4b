"""Ranks as processes forked from the tests, connected by gloo as under torchrun."""

import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ouroboros.drafters.draft_tree.tree_grower import warm_up_jit

PATIENCE_S = 120
FORK = multiprocessing.get_context("fork")


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def in_processes(size: int, work: Callable, place: Path) -> list[tuple[int, object]]:
    """Return the exit code (negative: the signal that ended it) of each of `size` ranks, and what
    `work` returned there (None where it did not end)."""
    place.mkdir(parents=True, exist_ok=True)
    warm_up_jit()  # here, once
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}

    def child(rank: int) -> None:
        os.environ.update(names, RANK=str(rank), LOCAL_RANK=str(rank))
        torch.set_num_threads(1)
        (place / f"{rank}.pickle").write_bytes(pickle.dumps(work()))

    ranks = [FORK.Process(target=child, args=(rank,)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    until = time.monotonic() + PATIENCE_S
    for rank in ranks:
        rank.join(max(0.0, until - time.monotonic()))
        rank.kill()
        rank.join()
    found = [place / f"{rank}.pickle" for rank in range(size)]
    values = [pickle.loads(path.read_bytes()) if path.exists() else None for path in found]
    return [(rank.exitcode, value) for rank, value in zip(ranks, values, strict=True)]


def killed(work: Callable[[], object], after_s: float) -> bool:
    """Run `work` in a forked process, kill -9 it after some seconds; return False if it ended."""
    worker = FORK.Process(target=work)
    worker.start()
    worker.join(after_s)
    worker.kill()
    worker.join()
    return worker.exitcode == -signal.SIGKILL
