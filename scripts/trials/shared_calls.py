"""Time a call of a tree on one rank and on several, in turn.

    torchrun --nproc-per-node 2 scripts/trials/shared_calls.py
    torchrun --nproc-per-node 2 scripts/trials/shared_calls.py --standin "" --dtype float32

Three ways take turns on the same random trees: rank 0 alone while the others wait; every rank the
whole tree at once, which shows what the ranks take from each other (memory bandwidth); and the tree
shared. Medians in milliseconds; torchrun gives each process one thread. The last line on stdout is
one JSON document.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from itertools import product
from statistics import median

import torch
from tabulate import tabulate

from ouroboros.bench.run.pair import PairSpec, load_pair
from ouroboros.bench.run.parallel import join_ranks
from ouroboros.costs.timing import IDS, random_tree
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import Ranks, message_ms
from ouroboros.engine.parallel.sharded import ShardedModel
from ouroboros.select import argmax
from ouroboros.tree import TokenTree

WAYS = ("one rank alone", "each the whole", "shared")


def shared_calls(args: argparse.Namespace) -> None:
    """Measure; print a table and one JSON document on rank 0."""
    if args.threads:
        torch.set_num_threads(args.threads)
    standin = {"target": args.standin} if args.standin else None
    spec = PairSpec("reference", args.target, dtype=args.dtype, standin=standin)
    with join_ranks("tree") as ranks:
        found = measured(load_pair(spec, with_draft=False).target, ranks, args)
        rows = []
        for nodes, own in sorted(found.items()):
            ms = {f"{way}, ms": median(own[way]) for way in (*WAYS, "a rank's part")}
            faster = median(own[WAYS[0]]) / median(own[WAYS[2]])
            rows.append({"nodes": nodes, "part": own["part"][0], **ms, "alone / shared": faster})
        print(tabulate(rows, headers="keys", floatfmt=".2f"))
        about = {"ranks": ranks.size, "threads": torch.get_num_threads(), "context": args.context}
        print(json.dumps({**about, "message_ms": message_ms(ranks), "calls": rows}))


def measured(target: CachedModel, ranks: Ranks, args: argparse.Namespace) -> dict:
    """Return {nodes: {way or figure: values}} as rank 0 sees it."""
    draw = random.Random(0)
    text = [draw.randrange(min(IDS, target.vocab_size)) for _ in range(args.context)]
    shared = ShardedModel(target, ranks)
    target.prepare(args.context + max(args.nodes))
    found: dict[int, dict[str, list[float]]] = {n: defaultdict(list) for n in args.nodes}
    turns = [(nodes, way) for nodes in sorted(args.nodes) for way in WAYS]
    for turn, (nodes, way) in product(range(args.rounds + 1), turns):
        model: CachedModel = shared if way == WAYS[2] else target
        shape = random_tree(nodes, draw=random.Random(nodes))
        tree = TokenTree((text[-1], *shape.tokens[1:]), shape.parents)
        sequence = model.new_sequence(cached=text[:-1])
        ranks.broadcast(None)  # all start together
        started = time.perf_counter()
        if way != WAYS[0] or ranks.rank == 0:
            choose = model.adapt_selector(argmax, own_rule=False)
            choose(model.score(sequence, text, tree), text, tree)
        taken_ms = 1e3 * (time.perf_counter() - started)
        if turn:  # the first round is not counted
            found[nodes][way].append(taken_ms)
        if way == WAYS[2]:
            sizes = ranks.all_gather(bytes([len(shared.part.nodes)]))
            found[nodes]["part"] = [max(size[0] for size in sizes)]
            found[nodes]["a rank's part"].append(1e3 * sequence.busy_s)
    return found


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", default="reference/target", help="a hub id or folder")
    add("--standin", default="cpu-target", help='the shape it runs inside; "": as it is')
    add("--dtype", default="auto")
    add("--nodes", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    add("--context", type=int, default=256, help="tokens before the tree, its root included")
    add("--rounds", type=int, default=7)
    add("--threads", type=int)
    return parser


if __name__ == "__main__":
    shared_calls(parser().parse_args())
