"""Time a call of a tree on one rank and on several, in turn.

    torchrun --nproc-per-node 2 scripts/trials/shared_calls.py
    torchrun --nproc-per-node 2 scripts/trials/shared_calls.py --standin "" --dtype float32

Three ways alternate on the same random trees: rank 0 alone while the others wait; every rank the
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
from collections.abc import Callable
from statistics import median

import torch
from tabulate import tabulate

from ouroboros.bench.run.pair import PairSpec, load_pair
from ouroboros.bench.run.parallel import join_ranks
from ouroboros.costs.timing import IDS, random_tree
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import Ranks, message_ms
from ouroboros.engine.parallel.sharded import GatheringSelector, ShardedModel
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
        target = load_pair(spec, with_draft=False).target
        found = measured(target, ranks, args)
        rows = [row(nodes, own) for nodes, own in sorted(found.items())]
        message = message_ms(ranks)
        print(tabulate(rows, headers="keys", floatfmt=".2f"))
        about = {"ranks": ranks.size, "threads": torch.get_num_threads(), "context": args.context}
        print(json.dumps({**about, "message_ms": message, "calls": rows}))


def measured(target: CachedModel, ranks: Ranks, args: argparse.Namespace) -> dict:
    """Return {nodes: {way or figure: values}} as rank 0 sees it."""
    draw = random.Random(0)
    text = [draw.randrange(min(IDS, target.vocab_size)) for _ in range(args.context)]
    trees = {nodes: random_tree(nodes, draw=draw) for nodes in sorted(args.nodes)}
    shared = ShardedModel(target, ranks)
    target.prepare(args.context + max(trees))
    ways: dict[str, Callable[[TokenTree], float]] = {
        WAYS[0]: lambda tree: whole(target, text, tree) if ranks.rank == 0 else 0.0,
        WAYS[1]: lambda tree: whole(target, text, tree),
        WAYS[2]: lambda tree: parted(shared, text, tree),
    }
    found: dict[int, dict[str, list[float]]] = {n: defaultdict(list) for n in trees}
    turns = [(nodes, way) for nodes in trees for way in WAYS]
    for turn in range(args.rounds + 1):  # the first is not counted
        for nodes, way in ranks.broadcast(draw.sample(turns, len(turns))):
            ranks.broadcast(None)  # all start together
            started = time.perf_counter()
            busy_s = ways[way](trees[nodes])
            taken = 1e3 * (time.perf_counter() - started)
            if turn:
                found[nodes][way].append(taken)
            if way == WAYS[2]:
                sizes = ranks.all_gather(bytes([len(shared.part.nodes)]))
                found[nodes]["part"] = [max(size[0] for size in sizes)]
                found[nodes]["call"].append(1e3 * busy_s)
    return found


def whole(model: CachedModel, text: list[int], tree: TokenTree) -> float:
    """Score the whole tree on cached tokens and choose; return the seconds of the call alone."""
    tree = rooted(tree, text)
    sequence = model.new_sequence(cached=text[:-1])
    argmax(model.score(sequence, text, tree), text, tree)
    return sequence.busy_s


def parted(model: ShardedModel, text: list[int], tree: TokenTree) -> float:
    """Do the same, shared by the ranks."""
    tree = rooted(tree, text)
    sequence = model.new_sequence(cached=text[:-1])
    GatheringSelector(argmax, model)(model.score(sequence, text, tree), text, tree)
    return sequence.busy_s


def rooted(tree: TokenTree, text: list[int]) -> TokenTree:
    """Return the tree with the text's last token as its root."""
    return TokenTree((text[-1], *tree.tokens[1:]), tree.parents)


def row(nodes: int, found: dict[str, list[float]]) -> dict:
    """One line of the table: medians in milliseconds, and the speed that sharing gives."""
    alone, every, shared = (median(found[way]) for way in WAYS)
    return {
        "nodes": nodes,
        "part": found["part"][0],
        f"{WAYS[0]}, ms": alone,
        f"{WAYS[1]}, ms": every,
        "a rank's part, ms": median(found["call"]),
        f"{WAYS[2]}, ms": shared,
        "alone / shared": alone / shared,
    }


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
