"""A draft may have more or fewer ids than its target, but not other tokens for the same ids."""

import copy

import pytest
from ouroboros.baselines import Speculative
from tiny import VOCAB, StepLog, llama, plain, prompt_of, tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from ouroboros import CachedModel, Ouroboros, Sampler, argmax
from ouroboros.decode import RootOnly, decode
from ouroboros.models.vocab import check_pair, encode, fingerprint


def cached(width: int, *, seed: int = 0, words: int | None = None, **renamed: int) -> CachedModel:
    model = llama(seed, vocab_size=width)
    return CachedModel(model, tokenizer=tokenizer(words or width, **renamed))


@pytest.mark.parametrize("choose", [argmax, Sampler(seed=3)], ids=["argmax", "sample"])
@pytest.mark.parametrize(("target_width", "draft_width"), [(13, 40), (40, 13), (13, 14), (13, 13)])
def test_widths_may_differ(target_width, draft_width, choose):
    """A wide draft never proposes its own ids; a narrow one is fed ids it does not know."""
    target, draft = cached(target_width), cached(draft_width, seed=1)
    check_pair(target, draft)
    prompt = prompt_of(8, vocab=target_width)
    expected = decode(target, RootOnly(), prompt, max_new=40, choose=choose).tokens
    if choose is argmax:
        assert expected == plain(copy.deepcopy(target.model), prompt, 40)
    if target_width > draft_width:
        assert max(expected) >= draft_width
    for drafter in (Speculative(draft, gamma=4), Ouroboros(draft)):
        recorded = StepLog(drafter)
        assert decode(target, recorded, prompt, max_new=40, choose=choose).tokens == expected
        seen = {token for _, _, tree, _, _ in recorded.steps for token in tree.tokens}
        assert max(seen) < target_width


@pytest.mark.parametrize("choose", [argmax, Sampler(seed=3)], ids=["argmax", "sample"])
def test_added_tokens_of_other_names_are_never_proposed(choose):
    """Models of a family often rename special tokens; the texts are still the target's."""
    target, draft = cached(8, words=4), cached(8, seed=1, words=4)
    for model, names in ((target, ["<a>", "<b>", "<c>"]), (draft, ["<a>", "<d>", "<e>", "<f>"])):
        model.tokenizer.add_special_tokens({"eos_token": names[0]})
        model.tokenizer.add_tokens(names[1:])
    check_pair(target, draft)
    assert draft.width == 7 and draft.masked.tolist() == [5, 6]
    prompt = prompt_of(8, vocab=8)
    expected = decode(target, RootOnly(), prompt, max_new=40, choose=choose).tokens
    assert {5, 6} <= {*expected[8:]}, "the target writes such tokens"
    for drafter in (Speculative(draft, gamma=4), Ouroboros(draft, adapt=False)):
        recorded = StepLog(drafter)
        assert decode(target, recorded, prompt, max_new=40, choose=choose).tokens == expected
        trees = [tree for _, _, tree, _, _ in recorded.steps]
        nodes = [pair for tree in trees for pair in zip(tree.tokens, tree.source, strict=False)]
        drafted = {token for token, source in nodes if source == "draft"}
        assert drafted and drafted <= {0, 1, 2, 3, 4}


def test_without_tokenizers_sizes_that_padding_does_not_explain_are_refused():
    narrow, wide = CachedModel(llama()), CachedModel(llama(vocab_size=VOCAB + 1025))
    for target, draft in ((narrow, wide), (wide, narrow)):
        with pytest.raises(ValueError, match="choose a draft of the target's family"):
            check_pair(target, draft)


def test_a_draft_proposes_ids_that_both_have():
    for target, draft, width in (
        (cached(13), cached(16, seed=1, zebra=14), 13),  # ids of the draft alone may be anything
        (cached(20, words=13), cached(20, seed=1, words=13), 13),  # rows that are padding
        (CachedModel(llama()), CachedModel(llama(vocab_size=40)), VOCAB),
    ):
        check_pair(target, draft)
        assert draft.width == width and target.width == target.vocab_size


def test_a_fingerprint_names_what_ids_mean():
    assert fingerprint(tokenizer(13)) == fingerprint(tokenizer(13))
    named = [tokenizer(13), tokenizer(14), tokenizer(13, zebra=7), tokenizer(12)]
    assert len(set(map(fingerprint, named))) == 4


@pytest.mark.parametrize(
    ("template", "text", "ids"),
    [
        ("$A", "a b", "ab"),
        ("<s> $A", "a b", "sab"),
        ("<s> $A", "<s> a b", "sab"),  # a prompt that a chat template has rendered
        ("<s> $A", "<s> <s> a", "ssa"),  # on purpose
        ("<s> $A", "a <s>", "sas"),
        ("$A </s>", "a b", "ab"),  # a model would continue after the end
        ("$A </s>", "a </s>", "ae"),
        ("<s> $A </s>", "a", "sa"),
        ("<s> $A </s>", "<s> a", "sa"),
        ("<s> <s> $A", "<s> a", "sssa"),  # only a whole beginning is not repeated
        ("<s> $A", "", "s"),
    ],
)
def test_a_prompt_has_its_special_tokens_once_and_no_end(template, text, ids):
    made = Tokenizer(WordLevel({piece: n for n, piece in enumerate("ab")}, unk_token="a"))
    made.pre_tokenizer = Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = TemplateProcessing(
        single=template, special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    words = PreTrainedTokenizerFast(tokenizer_object=made)
    assert encode(words, text) == ["abse".index(letter) for letter in ids]
