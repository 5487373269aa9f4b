"""Time calls with 1, 2, ... rows: plain and prepacked weights, exact calls, llama.cpp.

    python scripts/call_times.py --out build/call_times        # 6 minutes on two quiet cores

Calls alternate in one process: each round times every engine once at each number of rows. The floor
is the time to read the weights once at the bandwidth of a sum over 1 GiB. Writes call_times.csv,
call_times.md and call_times.svg. llama.cpp is skipped without its packages
(`pip install llama-cpp-python gguf`); it computes logits for every row, as trees need.
"""

from __future__ import annotations

import argparse
import copy
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
from ouroboros.bench.run.pair import cpu, model_path
from ouroboros.engine.quantised import bytes_of
from ouroboros.standin import embed, shape
from ouroboros.tree import TokenTree

ROWS = (1, 2, 3, 4, 8, 16, 32, 64)


def read_bandwidth() -> float:
    """Return the read bandwidth in bytes per second: a sum over 1 GiB, best of ten."""
    data, best = torch.ones(1 << 28), float("inf")
    for _ in range(10):
        started = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - started)
    return data.nbytes / best


def our_call(model: CachedModel, context: int) -> Callable[[int], float]:
    """Return a function that times one call of `rows` rows, in seconds."""
    text = [int(token) for token in np.random.default_rng(0).integers(1, 5000, context)]
    model.score(model.new_sequence(), text, TokenTree.chain(text[-1], ()))

    def call(rows: int) -> float:
        # a root with three children, and the rest below: a tree, not a chain
        parents = [max(0, node - 3) for node in range(rows - 1)]
        tree = TokenTree((text[-1], *range(1, rows)), (-1, *parents))
        sequence = model.new_sequence(text[:-1])
        model.cache.set_length(context - 1)
        started = time.perf_counter()
        model.score(sequence, text, tree)
        return time.perf_counter() - started

    return call


def llama_cpp_call(path: Path, context: int) -> Callable[[int], float]:
    """Return a function that times one call of `rows` rows of llama.cpp, in seconds."""
    from llama_cpp import Llama

    threads: dict = dict.fromkeys(("n_threads", "n_threads_batch"), torch.get_num_threads())
    llama = Llama(str(path), n_ctx=context + 128, logits_all=True, verbose=False, **threads)
    llama.eval([1 + token % 5000 for token in range(context)])

    def call(rows: int) -> float:
        llama.n_tokens = context
        started = time.perf_counter()
        llama.eval(list(range(1, rows + 1)))
        return time.perf_counter() - started

    return call


def measure(args: argparse.Namespace, dtype: torch.dtype, folder: Path) -> pd.DataFrame:
    """Return the median milliseconds of each engine (index) by number of rows (columns)."""
    core = LlamaForCausalLM.from_pretrained(model_path(args.core), dtype=torch.float32)
    model = embed(core, shape(args.shape), device="cpu", dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    floor = 1e3 * bytes_of(model) / read_bandwidth()
    prepacked = CachedModel(copy.deepcopy(model))
    prepacked.prepack()
    calls = {
        "plain": our_call(CachedModel(copy.deepcopy(model)), args.context),
        "prepacked": our_call(prepacked, args.context),
        "exact": our_call(CachedModel(copy.deepcopy(model), exact=True), args.context),
    }
    try:
        write_gguf(model, folder / f"{name}.gguf")
        calls["llama.cpp"] = llama_cpp_call(folder / f"{name}.gguf", args.context)
    except ImportError as error:
        print(f"without llama.cpp: {error}")
    turns = [
        [1e3 * call(rows) for rows in ROWS for call in calls.values()]
        for _ in range(args.rounds + 2)  # the first two warm up
    ]
    times = pd.DataFrame(turns[2:], columns=pd.MultiIndex.from_product([ROWS, calls]))
    frame = times.median().unstack(0).loc[list(calls)]
    frame.loc["floor"] = floor
    return pd.concat({name: frame}, names=["dtype", "engine"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", required=True, type=Path, help="a folder")
    add("--core", default="reference/target", help="the model inside the shape")
    add("--shape", default="cpu-target", help="the shape of the stand-in")
    add("--context", default=256, type=int, help="cached tokens before the call")
    add("--rounds", default=15, type=int, help="timed calls of each size")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        parts = [
            measure(options, dtype, Path(scratch)) for dtype in (torch.float32, torch.bfloat16)
        ]
    frame = pd.concat(parts)
    what = f"ms per call, {options.context} cached tokens · stand-in {options.shape}"
    title = f"{what} · batch size 1 · {cpu()[0]}, {torch.get_num_threads()} threads"
    frame.to_csv(options.out / "call_times.csv")
    table = frame.round(1).reset_index().to_markdown(index=False)
    (options.out / "call_times.md").write_text(f"{title}\n\n{table}\n")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(parts)), ("float32", "bfloat16"), strict=True):
        frame.loc[name].T.plot(ax=axes, marker="o", markersize=3, loglog=True)
        axes.set(xlabel="rows of a call", ylabel="ms", title=name)
        axes.set_xticks(ROWS, [str(rows) for rows in ROWS], minor=False)
    figure.suptitle(title, fontsize=9)
    figure.savefig(options.out / "call_times.svg")
