"""Processes that split a tree return the text of one process; if one is killed, the others exit."""

import copy
import os
import signal
import time

import pytest
import torch
from ouroboros.baselines import Greedy
from processes import in_processes
from tiny import DRAFTERS, llama, noisy, prompt_of
from together import together

from ouroboros import CachedModel, Sampler, argmax
from ouroboros.calls import alone
from ouroboros.decode import decode, proposed
from ouroboros.drafters.on_first_rank import OnFirstRank
from ouroboros.engine.parallel.ranks import ProcessGroup, RankLost, all_succeed, own_gpu
from ouroboros.engine.parallel.sharded import ShardedModel

CASES = [(torch.float32, argmax), (torch.float64, Sampler(temperature=0.8, seed=3))]


def texts(ranks, names, draft: str = "every") -> list[list[int]]:
    """Every drafter in every case, on a short and a longer prompt."""
    found = []
    for dtype, choose in CASES:
        model = llama(1, dtype)
        target, small = CachedModel(copy.deepcopy(model)), CachedModel(noisy(model))
        if ranks is not None:
            target = ShardedModel(target, ranks)
            small = ShardedModel(small, ranks) if draft == "shared" else small
        for name in names:
            drafter = DRAFTERS[name](small)
            if draft == "first":
                drafter = OnFirstRank(drafter, ranks)
            for prompt in (prompt_of(1), prompt_of(7)):
                found.append(decode(target, drafter, prompt, max_new=8, choose=choose).tokens)
    return found


def test_two_processes_give_the_text_of_one(tmp_path):
    def work():
        ranks = ProcessGroup.join()
        return [texts(ranks, DRAFTERS, draft) for draft in ("every", "first", "shared")]

    want = texts(None, ["greedy"] * len(DRAFTERS))
    assert in_processes(2, work, tmp_path) == [(0, [want] * 3)] * 2


def test_a_rank_that_is_killed_ends_the_others(tmp_path):
    class Deadly(Greedy):
        steps = 0

        def propose(self, tokens, budget):
            self.steps += 1
            if self.steps == 4 and ranks_of[0].rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().propose(tokens, budget)

    ranks_of = []

    def work():
        ranks_of.append(ProcessGroup.join())
        with pytest.raises(RankLost, match="another rank is gone"):
            decode(ShardedModel(CachedModel(llama()), ranks_of[0]), Deadly(), [5], max_new=9)
        first = ranks_of[0].is_first("lost")
        (tmp_path / f"said-{ranks_of[0].rank}").touch()
        while len(list(tmp_path.glob("said-*"))) < 2:  # whom they ask lives in rank 0
            time.sleep(0.01)
        return first

    codes, said = zip(*in_processes(3, work, tmp_path), strict=True)
    assert codes == (0, -signal.SIGKILL, 0) and sorted(said, key=str) == [False, None, True]


def test_ranks_that_have_parted_find_it_out(tmp_path):
    def work():
        ranks = ProcessGroup.join()
        with pytest.raises(RankLost, match="no longer take the same steps"):
            ranks.all_gather(b"x") if ranks.rank else ranks.broadcast(None)
        return len(ranks.broadcast(bytes(3000))), ranks.all_gather(ranks.rank)

    assert in_processes(2, work, tmp_path) == [(0, (3000, [0, 1]))] * 2


def test_outside_of_torchrun_the_remedy_is_named(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2"):
        ProcessGroup.join()


@pytest.mark.parametrize(("rank", "gpus", "own"), [(0, 0, None), (1, 2, 1), (3, 2, 1)])
def test_processes_beyond_the_number_of_gpus_share_one(monkeypatch, rank, gpus, own):
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert own_gpu() == own


def test_what_ranks_agree_on():
    def work(rank):
        assert rank.broadcast({"of": rank.rank}) == {"of": 0}
        assert all_succeed(rank, lambda: rank.rank) == rank.rank

        def load():
            if rank.rank == 1:
                raise OSError("no such file")

        with pytest.raises((OSError, ValueError)) as failed:
            all_succeed(rank, load)
        return str(failed.value)

    assert together(3, work) == ["rank 1: no such file", "no such file", "rank 1: no such file"]


def test_a_draft_that_fails_fails_on_every_rank():
    class Failing(Greedy):
        def propose(self, tokens, budget):
            raise MemoryError("no memory left")

    def work(rank):
        with pytest.raises((MemoryError, RuntimeError)) as failed:
            alone(proposed(OnFirstRank(Failing(), rank), [5], 3))
        return str(failed.value)

    assert together(2, work) == ["no memory left", "rank 0 failed to draft"]
