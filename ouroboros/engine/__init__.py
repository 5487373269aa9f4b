"""One call of one model: a token tree in, logits out, accepted slots kept.

From outside take `CachedModel`; the rest is how it does it (eager or static calls, masks, caches,
kernels, quantised weights). Knows the tree, not who proposes it.
"""
