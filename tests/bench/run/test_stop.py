"""Stop strings: every decoder's completion ends at the same token."""

from bench_models import TextTask, bench_of
from measured import step
from ouroboros.baselines import PromptLookup, Speculative

from ouroboros.core.trace import DecodeTrace, cut
from ouroboros.decode import RootOnly


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
