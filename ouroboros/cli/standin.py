"""Save a stand-in, a small trained model inside a large model's shape: `ouroboros standin`.

What can be typed stands in `ouroboros.cli.arguments`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ouroboros.bench.run.pair import place
from ouroboros.engine.quantised import bytes_of
from ouroboros.standin import blank, embed, shape

RESERVE_BYTES = 1 << 30  # The disk must have this much left afterwards.
CARD = """# Stand-in of shape {shape}

Computes the function of `{core}` at the memory traffic of {shape}: made by
`ouroboros standin`, for timing only. It is not the model whose shape it has.
"""


def check_disk(config: LlamaConfig, dtype: torch.dtype, out: Path) -> None:
    """Raise ValueError if `out` is in use, or if its disk cannot hold the checkpoint."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not an empty folder: name another one")
    model = blank(config, dtype)
    need = bytes_of(model) + model.model.embed_tokens.weight.nbytes
    parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(parent).free
    if need + RESERVE_BYTES > free:
        raise ValueError(
            f"the checkpoint needs {need / 1e9:.1f} GB and {parent} has {free / 1e9:.1f} GB free: "
            "choose a smaller shape or build it in memory with ouroboros.standin.embed"
        )


def standin(args: argparse.Namespace) -> int:
    """Build and save the stand-in; return 0. Raises `ValueError` where it does not fit."""
    config, dtype = shape(args.shape), getattr(torch, args.dtype)
    check_disk(config, dtype, args.out)
    core = LlamaForCausalLM.from_pretrained(place(args.core), dtype=dtype)
    model = embed(core, config, device=args.device, dtype=dtype, seed=args.seed)
    model.save_pretrained(args.out)
    AutoTokenizer.from_pretrained(place(args.core)).save_pretrained(args.out)
    (args.out / "README.md").write_text(CARD.format(shape=args.shape, core=args.core))
    print(f"{args.out}: {bytes_of(model) / 1e9:.2f} GB read per decoding step")
    return 0
