"""Text from tokens is the tokenizer's own, token by token; stop strings end at the same token
whatever the steps."""

import random
from functools import cache

import pytest
from bench_models import EOS, byte_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from ouroboros.core.detokenizer import PARTIAL, Detokenizer, StopStrings, text_of

STOP = ("\ndef", "ab\n", "é", "x a")
PIECES = ["\n", *"def", "ef", "ab", "a", "b", "\nd", "é", "ü", " x", "  ", "═", "🎉", PARTIAL]
WEIGHTS = [3, 3, 3, 3, 1, 1, 2, 2, 1, 0.2, 1, 2, 1, 1, 1, 0.2]


def fast(model, pre_tokenizer, decoder) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


@cache
def sentencepiece() -> PreTrainedTokenizerFast:
    """Drops the first space of a text; a character outside its vocabulary is a token per byte."""
    words = ["▁", "a", "b", "d", "e", "f", "ef", "ab", "▁x", "▁ab"]
    vocab = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = models.Unigram([(piece, -1.0) for piece in vocab], unk_id=0, byte_fallback=True)
    parts = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    return fast(model, pre_tokenizers.Metaspace(), decoder)


@cache
def suffixed() -> PreTrainedTokenizerFast:
    """The space after a word depends on whether a word follows."""
    vocab = [*"abdefx", *(f"{letter}</w>" for letter in "abdefx"), "<unk>"]
    merges = [("a", "b</w>"), ("e", "f</w>")]
    vocab = {piece: i for i, piece in enumerate([*vocab, *map("".join, merges)])}
    how = {"unk_token": "<unk>", "end_of_word_suffix": "</w>"}
    model = models.BPE(vocab=vocab, merges=merges, **how)
    return fast(model, pre_tokenizers.Whitespace(), decoders.BPEDecoder())


TOKENIZERS = {
    "byte level": cache(byte_tokenizer),
    "sentencepiece": sentencepiece,
    "suffixes": suffixed,
    "ByT5": cache(ByT5Tokenizer),
}
every = pytest.mark.parametrize(
    "tokenizer", [make() for make in TOKENIZERS.values()], ids=TOKENIZERS
)


def texts(tokenizer, seed: int, count: int = 5):
    """Yield the tokens of random texts, with special tokens in some of them."""
    rng = random.Random(seed)
    for number in range(count):
        ids = ids_of(tokenizer, "".join(rng.choices(PIECES, weights=WEIGHTS, k=60)))
        if number % 2:
            ids[rng.randrange(len(ids)) : 0] = [tokenizer.eos_token_id]
        yield ids


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def decoded(tokenizer, tokens, skip_special: bool = False) -> str:
    how = {"skip_special_tokens": skip_special, "clean_up_tokenization_spaces": False}
    return tokenizer.decode(tokens, **how)


@every
@pytest.mark.parametrize("skip_special", [False, True])
@pytest.mark.parametrize("before", ["", "ab x"])
def test_the_text_is_that_of_decoding_all_tokens(tokenizer, skip_special, before):
    prompt, compared = ids_of(tokenizer, before), 0
    start = decoded(tokenizer, prompt, skip_special)
    for ids in texts(tokenizer, 0):
        text, so_far = Detokenizer(tokenizer, after=prompt, skip_special=skip_special), start
        for end, token in enumerate(ids, 1):
            so_far += text.add(token)
            if not text.partial:
                assert so_far == decoded(tokenizer, [*prompt, *ids[:end]], skip_special)
                compared += 1
        options = {"after": prompt, "skip_special": skip_special}
        assert start + text_of(tokenizer, ids, **options) == so_far
    assert compared > 100


def test_a_completion_after_a_special_token_keeps_its_first_space():
    tokenizer = sentencepiece()
    prompt, new = [*ids_of(tokenizer, "ab"), tokenizer.eos_token_id], ids_of(tokenizer, " x")
    assert text_of(tokenizer, new, after=prompt) == " x"
    assert text_of(tokenizer, new) == text_of(tokenizer, new, after=prompt[-1:]) == "x"


@pytest.mark.parametrize("name", ["byte level", "sentencepiece", "ByT5"])
def test_only_bytes_that_are_no_character_are_replaced(name):
    tokenizer = TOKENIZERS[name]()
    smile = ids_of(tokenizer, "🎉")[-4:]
    text = Detokenizer(tokenizer)
    pieces = list(map(text.add, [*smile, smile[3], *smile[:2], *ids_of(tokenizer, "ab")[-1:]]))
    assert pieces[:7] == ["", "", "", "🎉", PARTIAL, "", ""] and pieces[7].startswith(PARTIAL)
    assert text.partial == ""
    assert text_of(tokenizer, smile[:3]) == PARTIAL, "a completion may end inside a character"


def test_the_work_does_not_grow_with_the_text(monkeypatch):
    tokenizer, decoded = byte_tokenizer(), []
    decode = tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda ids, **o: decoded.append(ids) or decode(ids, **o)
    )
    ids = [token for ids in texts(tokenizer, 1, 20) for token in ids]
    for _ in range(2):
        stop = StopStrings(tokenizer, ["not there"])
        assert all(stop(ids[:end]) is None for end in range(0, len(ids), 5))
    assert len(ids) > 1000 > 4 * len(decoded) and max(map(len, decoded)) == 2


HALF = ("\ndef", PARTIAL)  # found where a character is not complete
ROWS = [(name, strings) for name in TOKENIZERS for strings in (STOP, ("f", EOS))]


@pytest.mark.parametrize(
    ("name", "strings"), [*ROWS, ("byte level", HALF), ("sentencepiece", HALF)], ids=str
)
def test_any_steps_end_at_the_shortest_prefix_with_a_stop_string(name, strings):
    """Compared with decoding every prefix whole."""
    rng, tokenizer, ends = random.Random(0), TOKENIZERS[name](), []
    for ids in texts(tokenizer, 0, 20):
        prefixes = [decoded(tokenizer, ids[:end]) for end in range(len(ids) + 1)]
        hits = (end for end, text in enumerate(prefixes) if any(s in text for s in strings))
        ends.append(next(hits, None))
        for most in (1, 5, 13):
            stop, seen, kept = StopStrings(tokenizer, strings), 0, None
            while seen < len(ids) and kept is None:
                seen = min(len(ids), seen + rng.randint(1, most))
                kept = stop(ids[:seen])
            assert kept == ends[-1]
            assert stop(ids) == ends[-1], "it may be called again"
    assert any(ends)


def test_no_stop_strings_never_stop_and_an_empty_one_is_refused():
    tokenizer = byte_tokenizer()
    assert StopStrings(tokenizer, ())(tokenizer("\ndef").input_ids) is None
    with pytest.raises(ValueError, match="empty"):
        StopStrings(tokenizer, ("",))


@pytest.mark.parametrize(
    ("prompt", "stop", "ends"),
    [("ab", " x", 1), ("ab", "b x", None), ("a x", "x", 1), ("ab\n", "\nab", None)],
)
def test_a_stop_string_begins_after_the_prompt_unless_it_may_begin_there(prompt, stop, ends):
    tokenizer = sentencepiece()
    new = ids_of(tokenizer, "xab")  # "▁x", "ab"
    ids = ids_of(tokenizer, prompt)
    assert StopStrings(tokenizer, [stop], after=ids)(new) == ends
    crossing = {"b x": 1, "\nab": None}.get(stop, ends)
    assert StopStrings(tokenizer, [stop], after=ids, from_prompt=True)(new) == crossing
