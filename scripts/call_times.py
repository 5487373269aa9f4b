"""Time one call by number of rows: modules, prepacked weights, kernels, llama.cpp, and the floor.

    python scripts/call_times.py build/call_times        # 6 minutes on two quiet cores

Engines alternate in one process: in each round, every engine makes two calls at each number of
rows, of which the second is timed. The floor is the time to read the weights once at the bandwidth
of a sum over 1 GiB, timed in each round. Writes call_times.csv (medians) and call_times.svg.
llama.cpp is skipped without its packages (`pip install llama-cpp-python gguf`); it computes logits
for every row, as trees need.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from save_standin import write_gguf
from transformers import LlamaForCausalLM

from ouroboros import CachedModel
from ouroboros.bench.run.pair import cpu
from ouroboros.engine.prepack import prepack_linears, use_huge_pages
from ouroboros.engine.quantised import bytes_of
from ouroboros.models.load import model_path
from ouroboros.standin import embed, shape
from ouroboros.tree import TokenTree

ROWS = (1, 2, 4, 8, 16, 32, 64)
SHAPES = {"target": "smollm2-360m", "draft": "smollm2-360m@6"}  # by model of the reference pair
CONTEXT = 256  # cached tokens before the call
ROUNDS = 7  # timed calls of each size


def floor_call(size: int) -> Callable[[int], float]:
    """Return a function that measures the seconds to read `size` bytes; it ignores its argument."""
    data = torch.ones(1 << 28)
    use_huge_pages(data.data_ptr(), data.nbytes)

    def call(rows: int) -> float:
        started = time.perf_counter()
        data.sum()
        return (time.perf_counter() - started) * size / data.nbytes

    return call


def our_call(model: CachedModel) -> Callable[[int], float]:
    """Return a function (rows) that measures the seconds of one call on a tree of `rows` nodes."""
    text = [int(token) for token in np.random.default_rng(0).integers(1, 5000, CONTEXT)]
    model.score(model.new_sequence(), text, TokenTree.chain(text[-1], ()))

    def call(rows: int) -> float:
        # a root with three children, and the rest below: a tree, not a chain
        parents = [max(0, node - 3) for node in range(rows - 1)]
        tree = TokenTree((text[-1], *range(1, rows)), (-1, *parents))
        sequence = model.new_sequence(text[:-1])
        model.cache.set_length(CONTEXT - 1)
        started = time.perf_counter()
        model.score(sequence, text, tree)
        return time.perf_counter() - started

    return call


def llama_cpp_call(path: Path) -> Callable[[int], float]:
    """Return a function (rows) that measures the seconds of one llama.cpp call on `rows` tokens."""
    from llama_cpp import Llama

    threads: dict = dict.fromkeys(("n_threads", "n_threads_batch"), torch.get_num_threads())
    llama = Llama(str(path), n_ctx=CONTEXT + 128, logits_all=True, verbose=False, **threads)
    llama.eval([1 + token % 5000 for token in range(CONTEXT)])

    def call(rows: int) -> float:
        llama.n_tokens = CONTEXT
        started = time.perf_counter()
        llama.eval(list(range(1, rows + 1)))
        return time.perf_counter() - started

    return call


def second(call: Callable[[int], float], rows: int) -> float:
    """Pause, make two calls and return the seconds of the second. In the pause the previous
    engine's threads stop spinning; the first call wakes this engine's."""
    time.sleep(0.01)
    call(rows)
    return call(rows)


def measure(role: str, dtype: torch.dtype, scratch: Path) -> pd.Series:
    """Return the median ms per call of the stand-in of a role ("target" or "draft") in `dtype`,
    indexed by rows and engine. `scratch` is a folder for the GGUF file."""
    core = LlamaForCausalLM.from_pretrained(model_path(f"reference/{role}"), dtype=torch.float32)
    model = embed(core, shape(SHAPES[role]), device="cpu", dtype=dtype)
    packed = CachedModel(copy.deepcopy(model), engine="eager")
    packed.engine.packed = prepack_linears(packed.model)
    calls = {
        "modules": our_call(CachedModel(copy.deepcopy(model), engine="eager")),
        "modules, packed": our_call(packed),
        "kernels": our_call(CachedModel(copy.deepcopy(model), engine="fused")),
    }
    try:
        write_gguf(model, file := scratch / f"{role}-{dtype}.gguf")
        calls["llama.cpp"] = llama_cpp_call(file)
    except ImportError as error:
        print(f"without llama.cpp: {error}")
    calls["floor"] = floor_call(bytes_of(model))
    turns = [
        [1e3 * second(call, rows) for rows in ROWS for call in calls.values()]
        for _ in range(ROUNDS + 2)  # the first two warm up
    ]
    columns = pd.MultiIndex.from_product([ROWS, calls], names=["rows", "engine"])
    return pd.DataFrame(turns[2:], columns=columns).median().rename("ms")


def draw(times: pd.Series, title: str) -> Figure:
    """Return a plot of ms by rows, a panel per model and dtype and a line per engine; `times` is
    indexed by model, dtype, rows and engine."""
    panels = list(times.groupby(["model", "dtype"], sort=False))
    engines, ticks = times.index.unique("engine"), (1, 2, 5, 10, 20, 50, 100, 200, 500)
    styles = ["--" if engine == "floor" else "-o" for engine in engines]
    figure = Figure(figsize=(9, 1.8 * len(panels)), layout="constrained")
    for axes, (name, part) in zip(figure.subplots(len(panels) // 2, 2).flat, panels, strict=True):
        by_engine = part.droplevel(["model", "dtype"]).unstack("engine")[engines]
        by_engine.plot(ax=axes, loglog=True, style=styles, markersize=3, legend=False)
        axes.set(title=", ".join(map(str, name)), xlabel="rows of a call", ylabel="ms")
        axes.set_xticks(ROWS, map(str, ROWS))
        axes.set_yticks(ticks, map(str, ticks))
        axes.set_ylim(part.min() / 1.5, part.max() * 1.5)
        axes.minorticks_off()
    axes.legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    return figure


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        parts = {
            (role, name): measure(role, getattr(torch, name), Path(scratch))
            for role in SHAPES
            for name in ("float32", "bfloat16")
        }
    times = pd.concat(parts, names=["model", "dtype"])
    times.round(3).to_csv(out / "call_times.csv")
    where = f"{cpu()[0]}, {torch.get_num_threads()} threads"
    title = f"ms per call, {CONTEXT} cached tokens · stand-ins, batch size 1 · {where}"
    draw(times, title).savefig(out / "call_times.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
