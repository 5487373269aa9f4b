"""Ranks as processes forked from the tests, connected by gloo as under torchrun."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from ouroboros.drafters.draft_tree.tree_grower import warm_up_jit

PATIENCE_S = 120


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
    pids = []
    for rank in range(size):
        pid = os.fork()
        if not pid:
            os.environ.update(names, RANK=str(rank), LOCAL_RANK=str(rank))
            _child(work, place / f"{rank}.pickle")
        pids.append(pid)
    codes = _waited(pids)
    found = [place / f"{rank}.pickle" for rank in range(size)]
    values = [pickle.loads(path.read_bytes()) if path.exists() else None for path in found]
    return list(zip(codes, values, strict=True))


def killed(work: Callable[[], object], after_s: float) -> bool:
    """Run `work` in a forked process, kill -9 it after some seconds; return False if it ended."""
    worker = os.fork()
    if not worker:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(worker, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(worker, 0)[1])


def _child(work: Callable, path: Path) -> None:
    code = 1
    try:
        torch.set_num_threads(1)
        path.write_bytes(pickle.dumps(work()))
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _waited(pids: list[int]) -> list[int]:
    codes: dict[int, int] = {}
    until = time.monotonic() + PATIENCE_S
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [codes[pid] for pid in pids]
