"""Trial calls that compare an engine with the model's own modules, and joint with single calls.

Trials score the text of `ModelInfo`, which the model itself drew, and allow the rounding of
`ModelInfo.tolerance`. The first token is never compared: real models have huge activations there,
which bfloat16 rounds coarsely.
"""

from __future__ import annotations

import torch

from ouroboros.core.tree import TokenTree
from ouroboros.engine.cache import logit_error
from ouroboros.engine.eager import Eager
from ouroboros.engine.joint import SERVED
from ouroboros.engine.masks import Layout
from ouroboros.engine.static import Static
from ouroboros.engine.support import trial_tree

TRIAL_NODES = (1, 8, 24, 64)  # kernels differ from size to size


@torch.inference_mode()
def why_different(engine: Eager, reference: Eager) -> str | None:
    """Compare an engine's logits with those of the reference; return how they differ, or the error
    of a failed call; None if they agree.

    Each size is tried twice with different inputs, to detect a graph that replays the inputs of its
    capture. Overwrites the first slots of both caches.
    """
    info = reference.info
    layers = engine.compiled if isinstance(engine, Static) else None
    if layers is not None and not layers.compiled:
        return "its decoder layers were not found"
    try:
        for nodes in (size for size in TRIAL_NODES if size - size // 6 + 2 <= info.max_len):
            for first in (0, 1):
                text = [info.text[(first + at) % len(info.text)] for at in range(nodes + 1)]
                tree, path = trial_tree(text[1:], nodes)
                found, expected = (
                    _after_one(own, text[0], tree)[path] for own in (engine, reference)
                )
                if not (error := logit_error(found, expected)) < info.tolerance:
                    return f"its logits are off by {error:.2g} standard deviations"
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        reference.cache.set_length(0)
        engine.forwards = reference.forwards = 0
    return None


def _after_one(engine: Eager, token: int, tree: TokenTree) -> torch.Tensor:
    """Feed a sequence's first token, then a tree; return the tree's logits in float64."""
    engine.call([(engine.cache, Layout.chain(0, [token]))])
    return engine.call([(engine.cache, Layout(1, [], tree))])[0].to(torch.float64, copy=True)


@torch.inference_mode()
def why_not_jointly(engine: Eager) -> str:
    """Test joint calls of two sequences; return why they fail or how they differ from single calls
    ("" if they agree). Overwrites the first slots."""
    model, info = engine.model, engine.info
    attention = model.config.get_text_config()._attn_implementation
    if attention not in SERVED:
        return f"its attention ({attention}) is not one of this library's, which replace sdpa"
    chain, forwards = list(info.text), engine.forwards
    half = max(2, len(chain) // 2)
    slots, texts = [engine.new_slots() for _ in range(2)], [chain[:half], chain[:2]]
    trees = [TokenTree.chain(text[-1], chain[half:-1]).graft([[1], [2]]) for text in texts]
    try:
        engine.call([(own, Layout.chain(0, text)) for own, text in zip(slots, texts, strict=True)])
        layouts = [Layout(len(t) - 1, [], tree) for t, tree in zip(texts, trees, strict=True)]
        joint = engine.call(list(zip(slots, layouts, strict=True)))
        together = [logits.to(torch.float64, copy=True) for logits in joint]
        single = []
        for text, tree in zip(texts, trees, strict=True):
            (logits,) = engine.call([(engine.cache, Layout(0, text[:-1], tree))])
            single.append(logits.to(torch.float64, copy=True))
        error = max(logit_error(a, b) for a, b in zip(together, single, strict=True))
    except Exception as failure:  # models raise all kinds
        return (str(failure).strip() or type(failure).__name__).splitlines()[0]
    finally:
        engine.cache.set_length(0)
        engine.forwards = forwards
    return "" if error < info.tolerance else f"its logits move by {error:.2g} deviations"
