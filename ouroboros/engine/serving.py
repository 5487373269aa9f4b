"""How a model's calls are made here, as run.json says it, and whether that is the fast way.

Invariant: a fallback of any kind (no graphs, layers not compiled, no kernel) has a reason.
"""

from __future__ import annotations

from ouroboros.engine.attention import KERNEL_NAME
from ouroboros.engine.kernels import check
from ouroboros.engine.model import CachedModel
from ouroboros.engine.static import Static


def serving(model: CachedModel) -> dict[str, object]:
    """Return plain values: engine, whether calls are captured and layers compiled, by which
    attention, and `fallback`: why not the fast way, on a GPU that could; None where it is."""
    engine, config = model.engine, model.model.config.get_text_config()
    static = engine if isinstance(engine, Static) else None
    found: dict[str, object] = {
        "engine": type(engine).__name__.lower(),
        "captured": static is not None and static.graphs,
        "compiled": static is not None and static.blocks is not None,
        "attention": config._attn_implementation,
    }
    reasons = [model.engine_reason] if model.engine_reason else []
    if model.device.type != "cuda":
        return {**found, "fallback": None}
    if not reasons and not (found["captured"] and found["compiled"]):
        reasons.append("not captured with compiled layers")
    if found["attention"] != KERNEL_NAME:
        reasons.append(f"attention is {found['attention']}: {_why_no_kernel(model, config)}")
    return {**found, "fallback": "; ".join(reasons) or None}


def _why_no_kernel(model: CachedModel, config) -> str:
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return check(model.device, model.dtype, width) or "the model does not run on sdpa"
