"""Samples, runs and results folders made by hand, for the tests of reports."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ouroboros import StepRecord, TokenTree
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.report.gather import Measured, load
from ouroboros.bench.run.folder import SAMPLES, SCORES, ResultsFolder
from ouroboros.bench.run.tree_recorder import ProposedTree
from ouroboros.costs import CostModel, Costs, Surface


def step(drafted: int, accepted: int, *, new=None, draft_calls=0, scored=None, times=(0, 1, 0)):
    new = accepted + 1 if new is None else new
    sources = (*["draft"] * accepted, "target")[:new]
    scored = drafted + 1 if scored is None else scored
    return StepRecord(drafted, scored, accepted, new, draft_calls, sources, *times)


def sample(example, decoder, steps, *, tokens=None, wall_s=10.0, ttft_s=1.0, repeat=0, error=None):
    count = sum(s.new for s in steps)
    tokens = tuple(range(count)) if tokens is None else tokens
    return Sample(
        example=example,
        decoder=decoder,
        repeat=repeat,
        order=0,
        prompt_tokens=5,
        new_tokens=tokens,
        finish="length",
        steps=tuple(steps),
        wall_s=wall_s,
        ttft_s=ttft_s,
        error=error,
    )


GREEDY = [
    sample("a", "greedy", [step(0, 0)] * 4, wall_s=8.0, ttft_s=2.0),
    sample("b", "greedy", [step(0, 0)] * 6, wall_s=12.0, ttft_s=2.0),
]
FAST = [
    sample("a", "fast", [step(0, 0), step(2, 2)], wall_s=4.0, ttft_s=2.0),
    sample("b", "fast", [step(0, 0), step(4, 4)], wall_s=4.0, ttft_s=2.0),
]
THIRD = [
    sample("c", "greedy", [step(0, 0)] * 5, wall_s=10.0, ttft_s=2.0),
    sample("c", "fast", [step(0, 0), step(3, 3)], wall_s=4.0, ttft_s=2.0),
]
"""A third prompt: with it, speedups have intervals."""
COSTS = Costs(Surface.flat({1: 10.0, 5: 14.0}), Surface.constant(2.0), {"": 1.0}, prefill_ms=30.0)
TOY = CostModel(COSTS, "the costs 'toy'")
RUN = {
    "task": {"name": "toy", "version": "1", "licence": "none", "prompts": 2},
    "model": {
        "name": "reference",
        "standin": {"target": "cpu-target", "draft": "cpu-draft"},
        "dtype": "float32",
        "device": "cpu",
    },
    "decoders": ["greedy", "fast", "hf_greedy"],
    "sampling": {"temperature": 0.0},
    "max_new": 6,
    "samples_wanted": 6,
    "status": "finished",
    "provenance": {
        "time": "2026-11-20T12:00:00+00:00",
        "machine": {"cpu": "Toy CPU", "cores": 2, "threads": 1, "gpus": []},
        "versions": {"torch": "2", "transformers": "5"},
    },
}


def measured(samples=None, *, scores=None, priced=None, **facts) -> Measured:
    """Return a measurement in memory: greedy and fast on two prompts, or `samples`."""
    rows = [*GREEDY, *FAST] if samples is None else samples
    return Measured(Path("toy"), {**RUN, **facts}, rows, scores or {}, priced=priced)


def chain(drafted: int, accepted: int) -> StepRecord:
    """A step whose times are not measured."""
    return step(drafted, accepted, draft_calls=drafted, times=(0, 0, 0))


def three_decoders(priced=None, **facts) -> Measured:
    """Return a run of three prompts of six tokens each: greedy takes 12 s, another decoder 6 s,
    Ouroboros 2 to 4 s, transformers' greedy 12 or 13 s."""
    runs = {
        "greedy": ((12, 12, 12), [chain(0, 0)] * 6),
        "other": ((6, 6, 6), [chain(2, 1)] * 3),
        "ouroboros": ((2, 4, 3), [chain(4, 2)] * 2),
        "hf_greedy": ((12, 13, 12), [step(0, 0, scored=0)] * 6),
    }
    names = facts.get("decoders", list(runs))
    rows = [
        replace(sample(prompt, name, steps, wall_s=wall, ttft_s=ttft), prompt_tokens=9)
        for name, (walls, steps) in runs.items()
        for prompt, wall, late in zip("abc", walls, (0, 1, 0.5), strict=True)
        for ttft in [1.0 + late * (name == "other")]
        if name in names
    ]
    task = {**RUN["task"], "prompts": 3}
    return measured(rows, priced=priced, **{"decoders": names, "task": task, **facts})


def write_run(
    path: Path, run: Mapping, samples: Sequence[Sample], scores: Mapping | None = None
) -> ResultsFolder:
    """Write a finished results folder."""
    folder = ResultsFolder(path)
    folder.open_run({"identity": "x", **run})
    folder.save_run(folder.load_run(), status="finished")
    for row in samples:
        folder.append(SAMPLES, row.to_dict())
    for (example, decoder, repeat), values in (scores or {}).items():
        key = {"example": example, "decoder": decoder, "repeat": repeat}
        folder.append(SCORES, {**key, "scores": values})
    return folder


def measured_trees(path: Path, model: Mapping) -> Measured:
    """Write and load a run of both decoders; of the first prompt's fast run there are trees."""
    alone = ProposedTree(TokenTree((100,), (-1,), source=("",), probability=(1.0,)), (0,), 101)
    tree = TokenTree(
        (101, 102, 103, 104, 105),
        (-1, 0, 0, 1, 1),
        source=("", "phrase", "draft", "draft", "draft"),
        probability=(1.0, 0.6, 0.3, 0.8, 0.1),
    )
    folder = write_run(path, {**RUN, "model": model}, [*GREEDY, *FAST])
    folder.add_trees(("a", "fast", 0), [alone, ProposedTree(tree, (0, 1), 106)])
    return load(path)
