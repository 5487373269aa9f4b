r"""Save a stand-in for timing: a small trained model (the core) embedded in a model with the layer
sizes of a large one (its shape).

    python scripts/save_standin.py --shape smollm2-360m --out build/target --gguf build/target.gguf
    ouroboros bench "decoder=[greedy,prompt_lookup,llama_cpp]" model.target=build/target \
        model.standin=null model.dtype=bfloat16 decoder.llama_cpp.path=build/target.gguf

The folder holds an ordinary checkpoint and the core's tokenizer; --gguf also writes the same
weights for llama.cpp (`pip install llama-cpp-python`), without a tokenizer, since a benchmark
passes token ids. Without --shape, the core itself is saved. A stand-in computes the same as the
core, with the memory traffic of the large model: report timings as a stand-in's, never under the
large model's name.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedModel

from ouroboros.engine.quantised import bytes_of
from ouroboros.models.load import model_path
from ouroboros.models.standin import embed, shape

CARD = """# Stand-in of shape {shape}

Computes the function of `{core}` at the memory traffic of {shape}: made by
`scripts/save_standin.py`, for timing only. It is not the model whose shape it has.
"""


def main(words: Sequence[str] | None = None) -> None:
    """Build and save the stand-in. Raises `ValueError` if the folder is not new or empty."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    core = "the small model: folder, hub id, reference/target or reference/draft (%(default)s)"
    add("--core", default="reference/target", help=core)
    add("--shape", help="the large model's, as yi-34b; a wrong name lists them")
    add("--out", required=True, type=Path, help="a new folder")
    add("--gguf", type=Path, help="also write this file for llama.cpp")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    args = parser.parse_args(words)
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise ValueError(f"{args.out} is not an empty folder: name another one")
    dtype = getattr(torch, args.dtype)
    model = LlamaForCausalLM.from_pretrained(model_path(args.core), dtype=dtype)
    if args.shape:
        model = embed(model, shape(args.shape), device="cpu", dtype=dtype)
    model.save_pretrained(args.out)
    AutoTokenizer.from_pretrained(model_path(args.core)).save_pretrained(args.out)
    if args.shape:
        (args.out / "README.md").write_text(CARD.format(shape=args.shape, core=args.core))
    print(f"{args.out}: {bytes_of(model) / 1e9:.2f} GB read per decoding step")
    if args.gguf:
        write_gguf(model, args.gguf)


def write_gguf(model: PreTrainedModel, out: Path) -> None:
    """Write a Llama model without biases to the GGUF file `out`: matrices in its dtype, norms in
    float32, as llama.cpp requires."""
    import gguf

    config = model.config
    kinds = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    kind = gguf.GGMLQuantizationType[kinds[model.dtype]]
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(out.stem)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base((config.rope_parameters or {})["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = names.get_name(name, try_suffixes=(".weight",)) or name
        for key, count in (("attn_q.", heads), ("attn_k.", kv_heads)):
            if key in target:  # rotary: llama.cpp pairs neighbours, transformers pairs halves
                halves = weight.view(count, 2, -1, weight.shape[-1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
        stored = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else kind
        data = weight.float().contiguous().numpy()
        writer.add_tensor(target, gguf.quants.quantize(data, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{out}: {out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
