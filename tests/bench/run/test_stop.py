"""Stop strings: what is kept depends on the tokens alone."""

import random

import pytest
from bench_models import byte_tokenizer, tiny_pair
from ouroboros.baselines import PromptLookup, Speculative

from ouroboros.bench.run.loop import Bench, StopStrings, text_of
from ouroboros.bench.tasks.task import Example
from ouroboros.decode import RootOnly
from ouroboros.trace import DecodeTrace, StepRecord, cut

TOKENIZER = byte_tokenizer()
STOP = ("\ndef", "ab\n", "é")


def ids(text: str) -> list[int]:
    return TOKENIZER(text).input_ids


def shortest(tokens: list[int]) -> int | None:
    """Brute force: decode every prefix whole."""
    for end in range(1, len(tokens) + 1):
        if any(s in text_of(TOKENIZER, tokens[:end]) for s in STOP):
            return end
    return None


def test_cuts_at_the_first_token_that_completes_a_stop_string():
    tokens = ids("x = 1\n\ndef f")
    keep = StopStrings(TOKENIZER, STOP)(tokens)
    assert text_of(TOKENIZER, tokens[:keep]) == "x = 1\n\ndef"
    assert keep == shortest(tokens)


@pytest.mark.parametrize("seed", range(40))
def test_any_chunking_keeps_the_same_tokens_as_brute_force(seed):
    rng = random.Random(seed)
    pieces = ["\n", "d", "e", "f", "ef", "ab", "a", "b", "\nd", "é", "ü", "x"]
    tokens = ids("".join(rng.choices(pieces, weights=[3, 3, 3, 3, 1, 1, 2, 2, 1, 0.2, 1, 9], k=80)))
    stop, seen, kept = StopStrings(TOKENIZER, STOP), 0, None
    while seen < len(tokens) and kept is None:
        seen = min(len(tokens), seen + rng.randint(1, 13))
        kept = stop(tokens[:seen])
    assert kept == shortest(tokens)
    assert kept is None or stop(tokens[:seen]) == kept


def test_no_stop_strings_never_stop_and_an_empty_one_is_refused():
    assert StopStrings(TOKENIZER, ())(ids("\ndef")) is None
    with pytest.raises(ValueError, match="empty"):
        StopStrings(TOKENIZER, ("",))


def step(new: int, accepted: int) -> StepRecord:
    sources = (*["draft"] * accepted, "target")[:new]
    return StepRecord(4, 5, accepted, new, 4, sources, 0.1, 0.2, 0.3)


def test_cut_shortens_the_step_that_went_too_far_and_drops_later_ones():
    trace = DecodeTrace([9, 1, 2, 3, 4, 5, 6], 1, [step(2, 1), step(3, 2), step(1, 0)])
    short = cut(trace, 4)
    assert short.new_tokens == [1, 2, 3, 4] and short.finish == "stop"
    assert [(s.new, s.accepted, s.sources) for s in short.steps] == [
        (2, 1, ("draft", "target")),
        (2, 1, ("draft", "draft")),
    ]
    assert cut(trace, 2).steps == trace.steps[:1]


class Stopping:
    """A task whose prompts are answered by a random model, with short stop strings."""

    name, version, licence, max_new = "stopping", "1", "none", 60
    stop = ("e", "\n", "ab", "z")

    def load(self):
        return [Example(str(i), f"def f_{i}(a, b):") for i in range(6)]

    def score(self, example, completion):
        return {}


def test_every_decoder_keeps_the_same_tokens():
    target, draft = tiny_pair()
    task = Stopping()
    job = Bench(target, [target, draft], task, task.load(), {}, task.max_new)
    makers = [
        RootOnly,
        lambda: Speculative(draft, gamma=6),
        lambda: PromptLookup(max_ngram_size=2, num_tokens=5),
    ]
    stopped = 0
    for example in task.load():
        samples = [job.measure(make(), example, 0) for make in makers]
        assert {s.error for s in samples} == {None}
        assert len({s.new_tokens for s in samples}) == 1
        assert len({s.finish for s in samples}) == 1
        assert all(sum(step.new for step in s.steps) == len(s.new_tokens) for s in samples)
        stopped += samples[0].finish == "stop"
    assert stopped, "the test needs a completion that stops"
