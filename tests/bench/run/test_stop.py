"""Stop strings: every decoder's completion ends at the same token."""

import random

import pytest
from bench_models import EOS, TextTask, bench_of, byte_tokenizer
from measured import step
from ouroboros.baselines import PromptLookup, Speculative

from ouroboros.bench.run.loop import StopStrings, text_of
from ouroboros.decode import RootOnly
from ouroboros.trace import DecodeTrace, cut

TOKENIZER = byte_tokenizer()
STOP = ("\ndef", "ab\n", "é")


def shortest(tokens: list[int], strings) -> int | None:
    """Brute force: decode every prefix whole."""
    texts = (text_of(TOKENIZER, tokens[:end]) for end in range(len(tokens) + 1))
    return next((end for end, text in enumerate(texts) if any(s in text for s in strings)), None)


@pytest.mark.parametrize("strings", [STOP, ("\ndef", "\ufffd")], ids=["whole", "half"])
@pytest.mark.parametrize("seed", range(8))
def test_any_chunking_keeps_the_same_tokens_as_brute_force(seed, strings):
    rng = random.Random(seed)
    pieces = ["\n", "d", "e", "f", "ef", "ab", "a", "b", "\nd", "é", "ü", "x"]
    for _ in range(5):
        text = "".join(rng.choices(pieces, weights=[3, 3, 3, 3, 1, 1, 2, 2, 1, 0.2, 1, 9], k=80))
        tokens = TOKENIZER(text).input_ids
        stop, seen, kept = StopStrings(TOKENIZER, strings), 0, None
        while seen < len(tokens) and kept is None:
            seen = min(len(tokens), seen + rng.randint(1, 13))
            kept = stop(tokens[:seen])
        assert kept == shortest(tokens, strings)


def test_no_stop_strings_never_stop_and_an_empty_one_is_refused():
    assert StopStrings(TOKENIZER, ())(TOKENIZER("\ndef").input_ids) is None
    with pytest.raises(ValueError, match="empty"):
        StopStrings(TOKENIZER, ("",))


def test_a_special_token_may_be_a_stop_string():
    tokens = [*TOKENIZER("abc").input_ids, TOKENIZER.eos_token_id, *TOKENIZER("de").input_ids]
    stop = StopStrings(TOKENIZER, ("\n", EOS))
    assert stop(tokens[:2]) is None and stop(tokens) == 3
    assert text_of(TOKENIZER, tokens[:3]) == "abc"


def test_cut_shortens_the_step_that_went_too_far_and_drops_later_ones():
    trace = DecodeTrace([9, 1, 2, 3, 4, 5, 6], 1, [step(4, 1), step(4, 2), step(4, 0)])
    short = cut(trace, 4)
    assert short.new_tokens == [1, 2, 3, 4] and short.finish == "stop"
    sources = [("draft", "target"), ("draft", "draft")]
    assert [(s.new, s.accepted, s.sources) for s in short.steps] == [(2, 1, s) for s in sources]
    assert cut(trace, 2).steps == trace.steps[:1]


def test_every_decoder_keeps_the_same_tokens(pair):
    prompts = [f"def f_{i}(a, b):" for i in range(6)]
    task = TextTask(*prompts, max_new=60, stop=("e", "\n", "ab", "z"))
    job = bench_of(pair, task, {})
    makers = [
        RootOnly,
        lambda: Speculative(pair[1], gamma=6),
        lambda: PromptLookup(max_ngram_size=2, num_tokens=5),
    ]
    stopped = 0
    for example in task.load():
        samples = [row.sample for m in makers for row in job.measured([m()], [(example, 0)])]
        assert len({(s.error, s.new_tokens, s.finish) for s in samples}) == 1
        assert all(sum(step.new for step in s.steps) == len(s.new_tokens) for s in samples)
        assert not samples[0].error
        stopped += samples[0].finish == "stop"
    assert stopped, "the test needs a completion that stops"
