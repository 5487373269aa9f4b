"""Save a stand-in: a small trained model inside a large model's shape, for timing.

    python scripts/save_standin.py --core reference/target --shape yi-6b --out DIR

The folder gets an ordinary checkpoint and the core's tokenizer. The stand-in computes the same
function as the core, with the large model's memory traffic. Report its timings as a stand-in's,
never under the large model's name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from ouroboros.bench.run.pair import model_path
from ouroboros.engine.quantised import bytes_of
from ouroboros.standin import embed, shape

CARD = """# Stand-in of shape {shape}

Computes the function of `{core}` at the memory traffic of {shape}: made by
`scripts/save_standin.py`, for timing only. It is not the model whose shape it has.
"""


def save_standin(args: argparse.Namespace) -> None:
    """Build and save the stand-in. Raises `ValueError` if the folder is in use."""
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise ValueError(f"{args.out} is not an empty folder: name another one")
    config, dtype = shape(args.shape), getattr(torch, args.dtype)
    core = LlamaForCausalLM.from_pretrained(model_path(args.core), dtype=dtype)
    model = embed(core, config, device=args.device, dtype=dtype, seed=args.seed)
    model.save_pretrained(args.out)
    AutoTokenizer.from_pretrained(model_path(args.core)).save_pretrained(args.out)
    (args.out / "README.md").write_text(CARD.format(shape=args.shape, core=args.core))
    print(f"{args.out}: {bytes_of(model) / 1e9:.2f} GB read per decoding step")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    core = "the small model: folder, hub id, reference/target or reference/draft"
    add("--core", required=True, help=core)
    add("--shape", required=True, help="the large model's, as yi-34b; a wrong name lists them")
    add("--out", required=True, type=Path, help="a new folder")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    add("--device", default="cpu", help="where the weights are made")
    add("--seed", default=0, type=int, help="of the unused weights")
    return parser


if __name__ == "__main__":
    try:
        save_standin(parser().parse_args())
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
