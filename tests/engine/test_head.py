"""A trimmed head: which ids, how many bytes, and exact calls of the kernels."""

import copy
import random

import pytest
import torch
from bench_models import byte_tokenizer, tiny_llama
from ouroboros.baselines import Greedy, HFGenerate, Speculative
from parts import run_peer
from tiny import VOCAB, Session, llama, noisy, prompt_of, random_tree

from ouroboros import CachedModel, Ouroboros, decode, generate
from ouroboros.bench.run.pair import PairSpec, load_model
from ouroboros.core.select import all_ids, argmax
from ouroboros.costs.timing import footprint
from ouroboros.models.vocab import check_pair

HEAD = [12, 1, 7, 4, 9, 5]


def ids_of(model: CachedModel) -> list[int]:
    return model.head.ids[:-1].tolist()


@pytest.mark.parametrize("tied", [False, True])
def test_a_call_reads_the_heads_rows_alone(tied):
    model = llama(tie_word_embeddings=tied)
    whole, trimmed = CachedModel(model), CachedModel(model, draft_head=HEAD)
    row = 16 * 8  # hidden size times the bytes of a float64
    spared = footprint(whole).read_bytes - footprint(trimmed).read_bytes
    assert spared == (VOCAB - len(HEAD)) * row
    assert whole.model is model is trimmed.untrimmed is not trimmed.model
    assert len(model.lm_head.weight) == VOCAB  # the given model is unchanged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_logits_are_those_of_the_whole_head(dtype, fused):
    """By modules and by kernels: in a chain, in a tree, and one token at a time."""
    shape = {"hidden_size": 64, "intermediate_size": 160, "head_dim": 32}
    model = llama(dtype=dtype, **shape)
    engine = "fused" if fused else "eager"
    pair = [CachedModel(copy.deepcopy(model), engine=engine, draft_head=h) for h in (None, HEAD)]
    assert all(one.exact is fused for one in pair)
    assert pair[1].describe_engine()["head"] == len(HEAD)
    tokens, tree = prompt_of(9), random_tree(random.Random(0), prompt_of(9)[-1], 12)
    whole, trimmed = (Session(one).score(tokens, tree) for one in pair)
    assert trimmed.shape == (12, len(HEAD)) and trimmed.head.ids.tolist() == [*sorted(HEAD), -1]
    slack = 0.0 if fused else 16 * torch.finfo(dtype).eps  # torch rounds by a product's width
    torch.testing.assert_close(trimmed, whole[:, sorted(HEAD)], rtol=slack, atol=slack)
    spread = all_ids(trimmed)
    assert torch.equal(spread[:, sorted(HEAD)], trimmed)
    assert spread.isneginf().sum() == 12 * (spread.shape[1] - len(HEAD))
    text, expected = list(tokens), Session(pair[1]).roll(tokens, 6, argmax)
    for token in expected:
        row = Session(pair[0]).score(text, random_tree(random.Random(0), text[-1], 1))[0]
        assert token == max(sorted(HEAD), key=lambda i: row[i])
        text.append(token)


def test_the_ids_of_a_number_are_the_first_and_those_of_a_chat(tmp_path):
    """Without head_ids.json by rank, after ids that end a text or that a chat template has."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<user>", "<other>"])
    tokenizer.chat_template = "<user>{{ messages }}"
    model = tiny_llama(0)
    model.resize_token_embeddings(263, mean_resizing=False)
    model.generation_config.eos_token_id = [256, 257]
    draft = CachedModel(model, tokenizer=tokenizer, draft_head=8)
    assert ids_of(draft) == [0, 1, 2, 3, 256, 257, 260, 261]
    assert ids_of(CachedModel(model, draft_head=4)) == [0, 1, 256, 257]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    load = lambda head: CachedModel.from_pretrained(str(tmp_path), draft_head=head)  # noqa: E731
    assert load("auto").head is None and ids_of(load(2)) == [256, 257]
    (tmp_path / "head_ids.json").write_text("[9, 260, 3]")
    assert load(None).head is None
    assert ids_of(load("auto")) == [3, 9, 260] and ids_of(load(2)) == [9, 260]
    spec = PairSpec("own", str(tmp_path), draft=str(tmp_path), dtype="float32")
    assert ids_of(load_model(spec, "draft")) == [3, 9, 260]
    assert load_model(spec, "target").head is None


BAD = {
    "[1, 999]": "has id 999: give different ids from 0 to 260",
    "[1, 1]": "has an id twice: give",
    '["a"]': "has id 'a': give",
    "[]": "has no id: give",
    "{}": "is no JSON list of ids: delete it",
    "[[": "is no JSON list of ids: delete it",
}


@pytest.mark.parametrize("listed", BAD)
def test_a_list_of_strange_ids_is_refused(tmp_path, listed):
    tiny_llama(0).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "head_ids.json").write_text(listed)
    with pytest.raises(ValueError, match=BAD[listed]):
        CachedModel.from_pretrained(str(tmp_path), draft_head="auto")
    (tmp_path / "head_ids.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"draft_head=3: .* lists 2 ids; give at most as many"):
        CachedModel.from_pretrained(str(tmp_path), draft_head=3)


def test_a_number_beyond_the_vocabulary_and_a_trimmed_target_are_refused():
    with pytest.raises(ValueError, match=f"draft_head=14: give 1 to {VOCAB}, the vocabulary size"):
        CachedModel(llama(), draft_head=14)
    with pytest.raises(ValueError, match=r"model\.draft_head=0: give a whole number, 1 or more"):
        PairSpec("own", "target", draft_head=0)
    with pytest.raises(ValueError, match="give draft_head to the draft only"):
        decode(CachedModel(llama(), draft_head=9), Ouroboros(), [1, 2], max_new=2)


def test_a_head_is_limited_to_the_targets_ids():
    target, draft = CachedModel(llama()), CachedModel(llama(vocab_size=20), draft_head=[3, 5, 17])
    check_pair(target, draft)
    tokens = [1, 2, 3]
    logits = Session(draft).score(tokens, random_tree(random.Random(0), 3, 1))
    assert logits.shape == (1, 2) and logits.head.ids.tolist() == [3, 5, -1]
    trace = decode(target, Speculative(draft, gamma=3), tokens, max_new=30)
    assert trace.tokens == decode(target, Greedy(), tokens, max_new=30).tokens


def test_generate_takes_a_trimmed_draft_with_processors_and_transformers_the_whole():
    target, model = llama(), noisy(llama())
    ids, how = torch.tensor([prompt_of(9)]), {"max_new_tokens": 30, "do_sample": True, "seed": 5}
    how["repetition_penalty"] = 1.3
    draft = CachedModel(model, draft_head=HEAD)
    expected = generate(target, ids, decoder="greedy", **how)
    for decoder in ("speculative", "ouroboros"):
        assert torch.equal(generate(target, ids, draft=draft, decoder=decoder, **how), expected)
    peer, limits = HFGenerate("assisted", draft), {"max_new": 20}
    trace = run_peer(peer, wrapped := CachedModel(target), prompt_of(9), **limits)
    assert trace.tokens == decode(wrapped, Greedy(), prompt_of(9), **limits).tokens
    assert {*trace.new_tokens} - {*HEAD} and sum(step.accepted for step in trace.steps) > 5
