"""Choose stand-in shapes (layer sizes) that fit this GPU's memory, with fewer layers if necessary.

    python scripts/gpu/shapes.py yi-34b yi-6b --context 2048

prints the override for `ouroboros bench`: model.standin={target:yi-34b,draft:yi-6b}, or with 90, 80
or 70 % of both models' layers; draft:null for a target alone. Exits with 3 if not even these fit,
and with 1 if there is no GPU. Nothing is loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.costs import Footprint
from ouroboros.engine.quantised import bytes_of, stored_bytes
from ouroboros.engine.static import NODES, padded_slots
from ouroboros.models import standin

ROLES = ("target", "draft")
NO_GPU = "error: no GPU: torch.cuda.is_available() is False (REHEARSE=1 rehearses on a CPU)"
SHARES = (1, 0.9, 0.8, 0.7)
WORKSPACE_BYTES = 2 << 30  # graph pools, logits of both models, cuBLAS, the driver
CACHE_COPIES = 2  # a cache that grows is copied
SPARE = 0.95  # the share of the rest that weights and caches may take


def footprint_of(config: PreTrainedConfig, dtype: torch.dtype) -> Footprint:
    """Return the `Footprint` of a model in `dtype` from its config, without allocating weights."""
    text = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_bytes = 2 * text.num_hidden_layers * heads * width * dtype.itemsize
    return Footprint(sum(map(stored_bytes, model.parameters())), bytes_of(model), kv_bytes)


def fitting(shapes: Sequence[str], *, context: int, memory_bytes: int) -> list[str] | None:
    """Return the shapes with the largest share of layers (from `SHARES`) that fits in memory, in
    bfloat16 with caches of `context` tokens; None if no share fits."""
    slots = CACHE_COPIES * padded_slots(context + NODES[-1])
    for share in SHARES:
        found = list(shapes)
        if share < 1:
            layers = (round(share * standin.shape(name).num_hidden_layers) for name in shapes)
            names = (name.partition("@")[0] for name in shapes)
            found = [f"{name}@{count}" for name, count in zip(names, layers, strict=True)]
        sizes = [footprint_of(standin.shape(name), torch.bfloat16) for name in found]
        needed = sum(own.weight_bytes + slots * own.kv_bytes_per_token for own in sizes)
        if needed <= SPARE * (memory_bytes - WORKSPACE_BYTES):
            return found
    return None


def load_shapes(shapes: Sequence[str], *, small: bool) -> Pair:
    """Return the reference pair as stand-ins of the shapes, with engine="static" if `small`."""
    spec = PairSpec(
        *("SmolLM2-135M-Instruct", "reference/target", "reference/draft", "bfloat16"),
        standin=dict(zip(ROLES, shapes, strict=True)),
        engine="static" if small else "auto",
    )
    return load_pair(spec, with_draft=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", help="of the target and perhaps a draft")
    parser.add_argument("--context", type=int, default=2048)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    memory_bytes = torch.cuda.mem_get_info()[1]
    found = fitting(args.shapes, context=args.context, memory_bytes=memory_bytes)
    if found is None:
        parser.exit(3, f"{' and '.join(args.shapes)} do not fit in this GPU's memory\n")
    named = (f"{role}:{name}" for role, name in zip(ROLES, [*found, "null"], strict=False))
    print("model.standin={" + ",".join(named) + "}")
