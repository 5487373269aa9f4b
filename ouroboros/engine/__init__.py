"""Score token trees with one model: a tree in, logits out, accepted KV cache slots kept.

`CachedModel` is the interface. The other modules implement it: eager and static calls, masks, the
KV cache, kernels, quantised weights. Nothing here depends on drafters.
"""
