r"""Write a Llama checkpoint as GGUF, the file format of llama.cpp, with the same weights.

    python scripts/save_standin.py --core reference/target --shape cpu-target --out build/target
    python scripts/write_gguf.py build/target --out build/target.gguf
    ouroboros bench "decoder=[greedy,ouroboros,llama_cpp]" model.target=build/target \
        model.standin=null decoder.llama_cpp.path=build/target.gguf

Needs the package gguf (`pip install gguf llama-cpp-python`). The file has no tokenizer: benches
pass token ids. Norms are float32, as llama.cpp requires.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from ouroboros.bench.run.pair import model_path

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(folder: str, out: Path, dtype: str) -> None:
    """Write the file. Raises `ValueError` for architectures other than Llama's."""
    import gguf

    kinds = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
    kind = gguf.GGMLQuantizationType[kinds[dtype]]
    model = LlamaForCausalLM.from_pretrained(model_path(folder), dtype=torch.float32)
    config = model.config
    if config.model_type != "llama" or getattr(config, "attention_bias", False):
        raise ValueError(f"{folder} is a {config.model_type}: only Llama without biases is written")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(f"{folder} in {dtype}")
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
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = OUTER.get(name)
        if target is None:
            _, _, layer, *part = name.removesuffix(".weight").split(".")
            target = f"blk.{layer}.{LAYER['.'.join(part)]}.weight"
        for key, count in (("attn_q.", heads), ("attn_k.", kv_heads)):
            if key in target:  # llama.cpp rotates neighbouring pairs, transformers halves
                halves = weight.view(count, 2, -1, weight.shape[-1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
        stored = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else kind
        data = weight.contiguous().numpy()
        writer.add_tensor(target, gguf.quants.quantize(data, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{out}: {out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="the checkpoint: folder, hub id, reference/target")
    parser.add_argument("--out", required=True, type=Path, help="the file to write")
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=("bfloat16", "float16", "float32"),
        help="of matrices",
    )
    options = parser.parse_args()
    try:
        write_gguf(options.folder, options.out, options.dtype)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
