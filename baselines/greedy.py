"""Plain decoding: one target call for each token. With a sampler, plain sampling."""

from ouroboros.decode import RootOnly


class Greedy(RootOnly):
    """The engine with no draft at all."""
