"""A tokenizer that loses characters is refused at load."""

import json

import pytest
import torch
from bench_models import byte_tokenizer, tiny_llama
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from ouroboros import CachedModel
from ouroboros.bench.run.pair import PairSpec, load_tokenizer
from ouroboros.engine import loading
from ouroboros.engine.loading import PROBE


def loaded(place: str):
    return load_tokenizer(PairSpec("own", place))


def saved(folder, tokenizer) -> str:
    tokenizer.save_pretrained(folder)
    return str(folder)


def sentencepiece(*, lower: bool = False) -> PreTrainedTokenizerFast:
    """Characters with a space before the text, as SentencePiece has it."""
    alphabet = dict.fromkeys(["<unk>", "<s>", "\u2581", *PROBE.replace(" ", ""), "F"])
    vocab = {piece: i for i, piece in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    parts = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence([*[normalizers.Lowercase()] * lower, *parts])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize("made", [byte_tokenizer, sentencepiece, lambda: sentencepiece(lower=True)])
def test_lawful_tokenizers_are_loaded(tmp_path, monkeypatch, made):
    monkeypatch.setattr(loading, "PROBE", PROBE.replace("f", "F") if made().bos_token else PROBE)
    loaded(saved(tmp_path, made()))


def test_models_tokenizers_and_dtypes_are_those_that_the_options_name(tmp_path):
    tiny_llama(0).save_pretrained(tmp_path / "v2")
    saved(tmp_path, byte_tokenizer())
    other = byte_tokenizer()
    other.add_tokens(["def total"])
    saved(tmp_path / "v2", other)
    config = AutoConfig.from_pretrained(tmp_path / "v2")
    options = {"subfolder": "v2", "config": config, "torch_dtype": torch.bfloat16}
    model = CachedModel.from_pretrained(str(tmp_path), engine="eager", **options)
    spec = PairSpec("own", str(tmp_path), target_options={"subfolder": "v2"})
    for tokenizer in (model.tokenizer, load_tokenizer(spec)):
        assert tokenizer("def total")["input_ids"] == other("def total")["input_ids"]
    assert model.dtype == torch.bfloat16


def test_one_that_drops_spaces_is_refused_with_the_remedy(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    with pytest.raises(
        ValueError, match=r"decodes .* as .*: use the tok.*, set tokenizer_class to Pre"
    ):
        loaded(saved(tmp_path, tokenizer))


def test_a_byte_level_tokenizer_under_llamas_name(tmp_path):
    """As DeepSeek-Coder's is: either transformers reads it right, or it is refused."""
    saved(tmp_path, byte_tokenizer())
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "tokenizer_class": "LlamaTokenizerFast"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    try:
        tokenizer = loaded(str(tmp_path))
    except ValueError as error:
        assert "set tokenizer_class" in str(error)
        path.write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}))
        tokenizer = loaded(str(tmp_path))
    assert tokenizer.decode(tokenizer(PROBE)["input_ids"]) == PROBE
