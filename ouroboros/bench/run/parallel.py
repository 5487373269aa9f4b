"""A run on several devices: its models shared by the ranks, its results rank 0's.

Every rank runs the same loop over the same samples; the others write theirs to a copy of the
folder that is thrown away. Invariant: what ranks decide by (costs, what is done already, whether to
stop) is rank 0's, told to all.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np

from ouroboros.bench.run.folder import SAMPLES, ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import Pair, PairSpec
from ouroboros.costs import Costs, Surface
from ouroboros.decoders import Decoder, DecoderFactory
from ouroboros.drafters.on_first_rank import OnFirstRank
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import Alone, Group, RankLost, Ranks, told
from ouroboros.engine.parallel.sharded import CallMs, ShardedModel

WIDE = 24  # nodes of a draft call, for whether sharing it pays
MESSAGE_BYTES, MESSAGES = 512, 25


@contextmanager
def joined(parallel: str | None) -> Iterator[Ranks]:
    """Yield the ranks of a run, this process alone unless it is parallel. All but rank 0 are
    quiet; where a rank is lost, one of the others says so and all end with code 1."""
    if parallel is None:
        yield Alone()
        return
    ranks, stderr = Group.joined(), sys.stderr
    with ExitStack() as quiet:
        if ranks.rank:
            nowhere = quiet.enter_context(open(os.devnull, "w"))
            quiet.enter_context(redirect_stdout(nowhere))
            quiet.enter_context(redirect_stderr(nowhere))
        try:
            yield ranks
        except RankLost as error:
            if ranks.is_first("lost"):
                kept = "finished samples are kept; rerun with the same results_dir to resume"
                print(f"error: {error}: {kept}", file=stderr, flush=True)
            os._exit(1)  # whatever still waits for a rank that is gone
        except (ValueError, OSError):
            if ranks.rank:
                sys.exit(2)  # rank 0 says it
            raise


def on_own_device(spec: PairSpec, ranks: Ranks) -> PairSpec:
    """Return the spec with this rank's GPU as its device, unless it names one."""
    if ranks.size == 1 or spec.device is not None or not Group.on_gpus():
        return spec
    return replace(spec, device=f"cuda:{os.environ['LOCAL_RANK']}")


def shared_pair(pair: Pair, costs: Costs | None, ranks: Ranks, draft: str | None) -> Pair:
    """Return the pair with its target shared by the ranks, and its draft where `draft` says so
    (None: where the costs do)."""
    target = ShardedModel(pair.target, ranks, call_ms=by_surface(costs.target) if costs else None)
    small, surface = pair.draft, costs.draft if costs else None
    share = draft == "shared" or (draft is None and surface is not None and pays(surface, ranks))
    if small is not None and share:
        call_ms = None if surface is None else by_surface(surface)
        small = ShardedModel(small, ranks, call_ms=call_ms)
    return Pair(target, small)


def by_surface(surface: Surface) -> CallMs:
    """Return what a call costs; beyond what was measured, in proportion to its nodes."""
    most, longest = min(max(row) for row in surface.ms.values()), max(surface.ms)

    @lru_cache(maxsize=4096)
    def call_ms(nodes: int, context: int) -> float:
        known = surface.call_ms(min(nodes, most), min(context, longest))
        return known * max(1.0, nodes / most)

    return call_ms


def pays(surface: Surface, ranks: Ranks) -> bool:
    """Return whether a wide call of a draft takes longer whole than in parts with a message."""
    call_ms, context = by_surface(surface), int(min(512, max(surface.ms)))
    part = -(-WIDE // ranks.size)
    return call_ms(WIDE, context) - call_ms(part, context) > message_ms(ranks)


def message_ms(ranks: Ranks, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median milliseconds of an exchange, as rank 0 measures it; told to all."""
    message, taken = np.zeros(MESSAGE_BYTES, dtype=np.uint8), []
    for _ in range(MESSAGES):
        started = clock()
        ranks.exchange(message)
        taken.append(1e3 * (clock() - started))
    return told(ranks, median(taken))


def drafting_on_first(
    makers: Mapping[str, DecoderFactory], ranks: Ranks
) -> dict[str, DecoderFactory]:
    """Return makers of decoders that draft on rank 0 alone; other engines stay as they are."""

    def of(make: DecoderFactory) -> DecoderFactory:
        def made() -> Decoder:
            decoder = make()
            return decoder if hasattr(decoder, "run") else OnFirstRank(decoder, ranks)

        return made

    return {name: of(make) for name, make in makers.items()}


@contextmanager
def folder_of(folder: ResultsFolder, ranks: Ranks) -> Iterator[ResultsFolder]:
    """Yield where this rank writes: rank 0 in the folder itself, another one in a copy of what a
    run goes on from, which is thrown away."""
    if ranks.size == 1:
        yield folder
        return
    kept = [folder.path / SAMPLES, *folder.path.glob("pool-*.json")]
    found = told(ranks, {path.name: path.read_bytes() for path in kept if path.exists()})
    if ranks.rank == 0:
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        for name, data in found.items():
            Path(place, name).write_bytes(data)
        yield ResultsFolder(place)


def any_rank(ranks: Ranks, asked: bool) -> bool:
    """Return whether any rank was asked to stop."""
    return any(flag[0] for flag in ranks.exchange(np.array([asked], dtype=np.uint8)))


def exchanged(models: Sequence[CachedModel]) -> dict | None:
    """Return what a run says of its ranks and their messages; None for one process.

    `bytes_per_step` counts what all ranks together tell of the target's choices; `draft` is where
    the draft runs, and `draft_bytes` are told of its own."""
    target, *drafts = models
    if not isinstance(target, ShardedModel):
        return None
    shared = [draft for draft in drafts if isinstance(draft, ShardedModel)]
    return {
        "kind": "tree",
        "ranks": target.ranks.size,
        "draft_shared": bool(shared),
        "exchanges": target.exchanges,
        "bytes_per_step": round(target.exchanged_bytes / max(1, target.exchanges), 1),
        "draft_exchanges": sum(draft.exchanges for draft in shared),
        "draft_bytes": sum(draft.exchanged_bytes for draft in shared),
    }


def alone(job: Bench) -> Bench:
    """Return the job with the models of this rank by itself."""
    models = [m.alone() if isinstance(m, ShardedModel) else m for m in job.models]
    return replace(job, target=models[0], models=models)
