"""Ranks as threads of one process: the same steps as several processes, but fast."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ouroboros.baselines import Greedy, Lookahead, PromptLookup, Speculative, TokenRecycling

from ouroboros import Ouroboros, OuroborosPaper
from ouroboros.engine.parallel.ranks import RankLost, Ranks

SIZES = {"window_size": 4, "ngram_size": 4, "verification_set_size": 3}
DRAFTERS = {
    "greedy": lambda draft: Greedy(),
    "lookahead": lambda draft: Lookahead(**SIZES),
    "prompt_lookup": lambda draft: PromptLookup(max_ngram_size=2, num_tokens=4),
    "speculative": lambda draft: Speculative(draft, gamma=4),
    "recycling": lambda draft: TokenRecycling(nodes=12),
    "ouroboros": lambda draft: Ouroboros(draft, max_nodes=12, adapt=False),
    "ouroboros_paper": lambda draft: OuroborosPaper(draft, gamma=4, topk=2, **SIZES),
}


class Thread(Ranks):
    """One of `size` ranks that are threads of a `Table`."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.size = table, rank, table.size

    def all_gather(self, value) -> list:
        return self.table.put(self.rank, value)

    def broadcast(self, value):
        return self.table.put(self.rank, value)[0]


class Table:
    """Where the threads lay down what they tell each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.laid: list = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def put(self, rank: int, value) -> list:
        try:
            self.laid[rank] = value
            self.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RankLost("another rank is gone") from error
        found = list(self.laid)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait()
        return found


def together(size: int, work: Callable) -> list:
    """Return what `work` returns on each of `size` ranks."""
    table = Table(size)

    def one(rank: int):
        try:
            return work(Thread(table, rank))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        jobs = [pool.submit(one, rank) for rank in range(size)]
    errors = [job.exception() for job in jobs]
    worst = [e for e in errors if e is not None and not isinstance(e, RankLost)] or errors
    if any(errors):
        raise next(error for error in worst if error is not None)
    return [job.result() for job in jobs]
