"""Run on several devices: the ranks (processes) share each target call; rank 0 writes the results.

Every rank runs the same loop over the same samples. Invariant: everything that decisions depend on
(costs, finished samples, whether to stop) is broadcast from rank 0.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from copy import copy
from dataclasses import replace
from pathlib import Path

import torch

from ouroboros.bench.run.folder import COSTS, PROMPTS, SAMPLES, ResultsFolder
from ouroboros.bench.run.pair import PairSpec, dtype_of
from ouroboros.decoder_factory import Decoder, DecoderFactory, Peer
from ouroboros.drafters.on_first_rank import OnFirstRank
from ouroboros.engine.parallel.ranks import ProcessGroup, RankLost, Ranks, all_succeed, own_gpu


@contextmanager
def join_ranks(parallel: str | None) -> Iterator[Ranks]:
    """Yield the run's ranks, or a single one if `parallel` is None. Only rank 0 prints. If a
    rank is lost, all others exit with code 1; after a `ValueError` or `OSError`, all but rank 0
    with code 2."""
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
                sys.exit(2)  # rank 0 prints the error
            raise


@contextmanager
def claimed(folder: ResultsFolder, facts: Mapping, ranks: Ranks) -> Iterator[ResultsFolder]:
    """Yield the folder that this rank writes to, locked and checked with `run_to_resume(facts)`:
    `folder` on rank 0, else a temporary one with copies of the files needed to resume."""
    with ExitStack() as stack:
        if ranks.rank:
            folder = copy(folder)
            folder.path = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def claim() -> None:
            stack.enter_context(folder.locked())
            folder.run_to_resume(facts)

        all_succeed(ranks, claim)
        names = () if folder.overwrite else (SAMPLES, PROMPTS, COSTS, "pool-*.json")
        paths = [path for name in names for path in folder.path.glob(name)]
        files = ranks.broadcast({path.name: path.read_bytes() for path in paths})
        for name, data in files.items() if ranks.rank else ():
            (folder.path / name).write_bytes(data)
        yield folder


def on_own_device(spec: PairSpec, ranks: Ranks) -> PairSpec:
    """Return the spec with this rank's own GPU, unless a device is set; with rank 0's dtype; and
    without device_map=auto, which would spread each rank's models over all GPUs."""
    if ranks.size == 1:
        return spec
    options = {key: v for key, v in spec.options.items() if (key, v) != ("device_map", "auto")}
    spec, gpu = replace(spec, options=options), own_gpu()
    if spec.device is None and gpu is not None:
        torch.cuda.set_device(gpu)
        spec = replace(spec, device=f"cuda:{gpu}")
    return replace(spec, dtype=ranks.broadcast(str(dtype_of(spec)).removeprefix("torch.")))


def draft_on_first(make: DecoderFactory, ranks: Ranks) -> Decoder:
    """Return a decoder that drafts on rank 0 only; a `Peer` is not wrapped."""
    decoder = make()
    return decoder if isinstance(decoder, Peer) else OnFirstRank(decoder, ranks)
