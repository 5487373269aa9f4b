"""A run on several devices: the ranks share its models, and rank 0 keeps its results.

Every rank runs the same loop over the same samples; ranks other than 0 write to a temporary copy of
the folder. Invariant: whatever ranks base decisions on (costs, finished samples, whether to stop)
is broadcast from rank 0.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from ouroboros.bench.run.folder import SAMPLES, ResultsFolder
from ouroboros.bench.run.pair import Pair, PairSpec
from ouroboros.costs import Costs, Surface
from ouroboros.decoder_factory import Decoder, DecoderFactory, Peer
from ouroboros.drafters.on_first_rank import OnFirstRank
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import ProcessGroup, RankLost, Ranks, message_ms, own_gpu
from ouroboros.engine.parallel.sharded import CallMs, ShardedModel

WIDE_CALL = 24  # nodes of the draft call that sharing must make cheaper


@contextmanager
def join_ranks(parallel: str | None) -> Iterator[Ranks]:
    """Yield the run's ranks, a single one unless it is parallel. Only rank 0 prints.
    If a rank is lost, one of the others reports it and all exit with code 1."""
    if parallel is None:
        yield Ranks()
        return
    ranks, stderr = ProcessGroup.join(), sys.stderr
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
            os._exit(1)  # threads may still wait for the lost rank
        except (ValueError, OSError):
            if ranks.rank:
                sys.exit(2)  # rank 0 prints it
            raise


def on_own_device(spec: PairSpec, ranks: Ranks) -> PairSpec:
    """Return the spec with this rank's GPU as its device, unless one is set, and without
    device_map=auto, which would spread each rank's models over all GPUs."""
    if ranks.size == 1:
        return spec
    options = {key: v for key, v in spec.options.items() if (key, v) != ("device_map", "auto")}
    spec, gpu = replace(spec, options=options), own_gpu()
    if spec.device is not None or gpu is None:
        return spec
    torch.cuda.set_device(gpu)
    return replace(spec, device=f"cuda:{gpu}")


def shared_pair(pair: Pair, costs: Costs, ranks: Ranks, draft: str | None) -> Pair:
    """Return the pair with its target, and possibly its draft, shared by the ranks.

    The draft is shared if `draft` is "shared". If `draft` is None, it is shared if the costs say
    that a wide draft call takes longer than one rank's part of that call plus a message. Raises
    `ValueError` if the ranks have different dtypes, as dtype=auto may choose.
    """
    types = ", ".join(str(model.dtype).removeprefix("torch.") for model in pair.models)
    kinds = {message.rstrip().decode() for message in ranks.all_gather(types.encode().ljust(64))}
    if len(kinds) > 1:
        raise ValueError(
            f"the ranks compute in different types ({' and '.join(sorted(kinds))}): give one of "
            "them as model.dtype"
        )
    target = ShardedModel(pair.target, ranks, call_ms=call_cost(costs.target))
    if pair.draft is None or draft in ("every", "first"):
        return Pair(target, pair.draft)
    draft_ms = call_cost(costs.draft) if costs.draft else None
    if draft is None and costs.draft and draft_ms:
        context, part = int(min(512, max(costs.draft.ms))), -(-WIDE_CALL // ranks.size)
        saved_ms = draft_ms(WIDE_CALL, context) - draft_ms(part, context)
        draft = "shared" if saved_ms > message_ms(ranks) else None
    share = draft == "shared"
    return Pair(target, ShardedModel(pair.draft, ranks, call_ms=draft_ms) if share else pair.draft)


def call_cost(surface: Surface) -> CallMs:
    """Return a function for a call's ms; beyond the measured sizes, in proportion to its nodes."""
    most, longest = min(max(row) for row in surface.ms.values()), max(surface.ms)

    @lru_cache(maxsize=4096)
    def call_ms(nodes: int, context: int) -> float:
        measured = surface.call_ms(min(nodes, most), min(context, longest))
        return measured * max(1.0, nodes / most)

    return call_ms


def draft_on_first(make: DecoderFactory, ranks: Ranks) -> DecoderFactory:
    """Return a factory of decoders that draft on rank 0 only; a `Peer` is not wrapped."""

    def made() -> Decoder:
        decoder = make()
        return decoder if isinstance(decoder, Peer) else OnFirstRank(decoder, ranks)

    return made


@contextmanager
def folder_of(folder: ResultsFolder, ranks: Ranks) -> Iterator[ResultsFolder]:
    """Yield the folder that this rank writes to: for rank 0 the folder itself, for others a
    temporary copy of the files needed to resume."""
    paths = [folder.path / SAMPLES, *folder.path.glob("pool-*.json")]
    files = ranks.broadcast({path.name: path.read_bytes() for path in paths if path.exists()})
    if ranks.rank == 0:
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        for name, data in files.items():
            Path(place, name).write_bytes(data)
        yield ResultsFolder(place)


def parallel_facts(models: Sequence[CachedModel]) -> dict | None:
    """Return what run.json records about ranks and messages; None for a single process.

    `bytes_per_step` counts the messages of all ranks about the target's choices.
    """
    target, *drafts = models
    if not isinstance(target, ShardedModel):
        return None
    return {
        "kind": "tree",
        "ranks": target.ranks.size,
        "draft_shared": any(isinstance(draft, ShardedModel) for draft in drafts),
        "exchanges": target.exchanges,
        "bytes_per_step": round(target.exchanged_bytes / max(1, target.exchanges), 1),
    }
