"""Notes the trees of a run, and what the target predicted at every node of them.

The predictions are for a replay without the target, the trees for whoever wants to see them.

Invariant: a prediction is filed under its whole prefix (a *place*), so one found again is what the
target would say again, whatever tree asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.decode import Drafter, DrafterCapabilities
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import TokenSelector
from ouroboros.tree import TokenTree

PrefixKey = tuple[int, tuple[int, ...]]
"""(Tokens of the recorded sequence, tokens after them that are not the recorded ones)."""


def places(
    base: int, tree: TokenTree, recorded: Sequence[int], *, off: Sequence[int] = ()
) -> Iterator[PrefixKey]:
    """Yield the place of the prediction after each node of a tree whose root is token `base` - 1.

    `off` are the tokens, up to the root, that have left the recorded ones (none where it has not).

    >>> tree = TokenTree.chain(5, [6, 7]).graft([(9, 1)], at=1)
    >>> list(places(2, tree, [4, 5, 6, 7, 8]))
    [(2, ()), (3, ()), (4, ()), (3, (9,)), (3, (9, 1))]
    """
    found: list[PrefixKey] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        if parent < 0:
            found.append((base - len(off), tuple(off)))
            continue
        along, off = found[parent]
        agrees = not off and along < len(recorded) and recorded[along] == token
        found.append((along + 1, ()) if agrees else (along, (*off, token)))
    return iter(found)


class Recorder:
    """A drafter that passes everything on and notes each tree, its path and the predictions."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        own = DrafterCapabilities.of(drafter)
        self.draft, self.rule = own.draft, own.rule
        self.ranks, self.observe_ranked = own.ranks, own.observe_ranked
        self._prompt: tuple[int, ...] = ()
        self._steps: list[tuple[int, TokenTree, list[int], list[int]]] = []
        self._base = 0

    @property
    def draft_sequence(self) -> CachedSequence | None:
        """The drafter's own."""
        return getattr(self.drafter, "draft_sequence", None)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a run."""
        self._prompt, self._steps = (), []
        self.drafter.reset(choose)

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Propose what the drafter does."""
        self._base = len(tokens)
        self._prompt = self._prompt or tuple(tokens)
        return self.drafter.propose(tokens, budget)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Note the predictions; the drafter learns as ever."""
        self._steps.append((self._base, tree, list(chosen), list(path)))
        self.drafter.observe(tree, chosen, path)

    def predictions(self, new_tokens: Sequence[int]) -> dict[PrefixKey, int]:
        """Return what the run's tokens do not tell: predictions off the text or past its end."""
        recorded, found = [*self._prompt, *new_tokens], {}
        for base, tree, chosen, _ in self._steps:
            by_node = list(places(base, tree, recorded))
            for node in tree.logit_nodes:
                along, off = by_node[node]
                if off or along >= len(recorded):
                    found[along, off] = chosen[node]
        return found

    def trees(self) -> list[ProposedTree]:
        """Return the run's trees, one a step, and what became of them."""
        return [
            ProposedTree(
                tree.tokens,
                tree.parents,
                tuple(path),
                chosen[path[-1]],
                tree.probability,
                tree.source,
                tuple(sorted(tree.probe)),
            )
            for _, tree, chosen, path in self._steps
        ]


def tree_row(tree: ProposedTree, names: list[str]) -> dict:
    """Return a tree as JSON values, its sources as places in `names`, which grows; `row_tree`
    restores it."""
    names += [name for name in dict.fromkeys(tree.source) if name not in names]
    row = {
        "tokens": tree.tokens,
        "parents": tree.parents,
        "path": tree.path,
        "then": tree.then,
        "probability": [round(float(share), 4) for share in tree.probability],
        "source": [names.index(name) for name in tree.source],
        "probe": tree.probe,
    }
    return {key: value for key, value in row.items() if value != () and value != []}


def row_tree(row: Mapping, names: Sequence[str]) -> ProposedTree:
    """Rebuild a tree from `tree_row`'s values."""
    return ProposedTree(
        tuple(row["tokens"]),
        tuple(row["parents"]),
        tuple(row["path"]),
        row["then"],
        tuple(row.get("probability", ())),
        tuple(names[place] for place in row.get("source", ())),
        tuple(row.get("probe", ())),
    )


def listed(predictions: Mapping[PrefixKey, int]) -> list[list]:
    """Return predictions as JSON values; `unlisted` restores them."""
    return [[along, list(off), token] for (along, off), token in predictions.items()]


def unlisted(rows: Iterable[Sequence]) -> dict[PrefixKey, int]:
    """Rebuild predictions from `listed`'s values."""
    return {(along, tuple(off)): token for along, off, token in rows}
