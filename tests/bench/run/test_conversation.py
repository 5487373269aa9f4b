"""Conversations, chat templates and longer contexts: from an example to what the model reads."""

import json
from dataclasses import replace

import pytest
from bench_models import byte_tokenizer, tiny_pair

from ouroboros.bench.metrics.metrics import corpus_scores
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.folder import SAMPLES, ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.prompts import check_chat, prompt_ids, with_context
from ouroboros.bench.tasks.specbench import SpecBench
from ouroboros.bench.tasks.task import Example, fingerprint, select
from ouroboros.decode import RootOnly

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
TURNS = [Example("a/1", "a"), Example("a/2", "b", follows="a/1"), Example("c/1", "c")]


class Echo:
    """Two questions, one of two turns; each later prompt quotes the conversation before it."""

    name, version, licence, max_new, stop = "echo", "1", "none", 4, ()

    def load(self):
        return TURNS

    def score(self, example, completion):
        return {}

    def continued(self, example, before, answer):
        return replace(example, prompt=f"{before.prompt}[{answer}]{example.prompt}")

    def corpus_scores(self, pairs):
        return {"completions": float(len(pairs))}


class FailsAt(RootOnly):
    """Fails at prompts of `length` tokens."""

    length = 1

    def propose(self, tokens, budget):
        if len(tokens) == self.length:
            raise RuntimeError("broken")
        return super().propose(tokens, budget)


@pytest.fixture(scope="module")
def target():
    return tiny_pair()[0]


def run(target, path, decoders) -> list[Sample]:
    folder = ResultsFolder(path)
    folder.open_run({})
    seen: list[Sample] = []
    Bench(target, [target], Echo(), TURNS, decoders, 4, repeats=2).run(folder, seen.append)
    return seen


def test_every_decoder_goes_on_from_the_first_ones_answer(target, tmp_path):
    class Other(RootOnly):
        """Meets the same prompts, wherever it stands in the order."""

    samples = run(target, tmp_path, {"greedy": RootOnly, "other": Other})
    by_key = {s.key: s for s in samples}
    assert not any(s.error for s in samples)
    for repeat in (0, 1):
        first, later = by_key["a/1", "greedy", repeat], by_key["a/2", "other", repeat]
        expected = f"a[{first.text}]b"
        assert later.prompt_tokens == len(target.tokenizer(expected).input_ids)
        assert later.new_tokens == by_key["a/2", "greedy", repeat].new_tokens


def test_a_resumed_conversation_goes_on_from_the_answer_on_disk(target, tmp_path):
    decoders = {"greedy": RootOnly, "other": RootOnly}
    whole = run(target, tmp_path, decoders)
    path = tmp_path / SAMPLES
    lines = path.read_text().splitlines(keepends=True)
    changed = {**json.loads(lines[0]), "text": "a much longer answer"}
    path.write_text(json.dumps(changed) + "\n" + lines[1])
    again = {s.key: s for s in run(target, tmp_path, decoders)}
    assert len(again) == len(whole)
    assert again["a/2", "other", 0].prompt_tokens > 20
    assert again["a/2", "other", 1].prompt_tokens < 20


def test_a_failed_turn_fails_the_later_one_for_every_decoder(target, tmp_path):
    samples = run(target, tmp_path, {"broken": FailsAt, "greedy": RootOnly})
    failed = {s.key[:2]: s.error for s in samples if s.error and s.repeat == 0}
    assert failed["a/1", "broken"] == "RuntimeError: broken"
    reason = "ValueError: broken failed at the turn before: RuntimeError: broken"
    assert failed["a/2", "broken"] == failed["a/2", "greedy"] == reason
    assert ("a/1", "greedy") not in failed


def test_groups_are_in_the_samples_and_old_samples_have_none(target):
    example = replace(TURNS[0], group="writing")
    sample = Bench(target, [target], Echo(), [example], {}, 2).measure(RootOnly(), example, 0)
    assert sample.group == "writing"
    old = sample.to_dict()
    del old["group"]
    assert Sample.from_dict(old).group == ""


def test_selecting_keeps_the_turns_of_a_conversation_together():
    examples = [
        e
        for n in range(6)
        for e in (Example(f"{n}/1", "p"), Example(f"{n}/2", "q", follows=f"{n}/1"))
    ]
    chosen = [e.id for e in select(examples, limit=2, stride=3)]
    assert chosen == ["0/1", "0/2", "3/1", "3/2"]
    shuffled = [e.id for e in select(examples, limit=None, shuffle=1)]
    assert sorted(shuffled) == [e.id for e in examples] and shuffled != sorted(shuffled)
    assert shuffled == [e.id for e in select(examples, limit=None, shuffle=1)]
    assert all(b == a[:-1] + "2" for a, b in zip(shuffled[::2], shuffled[1::2], strict=True))
    for wrong, options, says in (
        (examples[-1:], {}, "5/2 follows '5/1', which does not precede it"),
        (examples, {"stride": 0}, "stride"),
        ([], {}, "no examples"),
    ):
        with pytest.raises(ValueError, match=says):
            select(wrong, limit=None, **options)


def test_the_fingerprint_covers_what_prompts_are_made_of():
    told = replace(TURNS[0], messages=({"role": "user", "content": "a"},))
    prints = [fingerprint(TURNS), fingerprint(TURNS[::-1]), fingerprint([told, *TURNS[1:]])]
    prints.append(fingerprint([TURNS[0], replace(TURNS[1], follows=None), TURNS[2]]))
    assert len(set(prints)) == 4


def test_specbench_turns():
    task = SpecBench(path="examples")
    first, second, *others = task.load()
    assert (first.id, second.id, second.follows) == ("1/1", "1/2", "1/1")
    assert first.group == second.group == "writing" and others[0].group == "translation"
    whole = task.continued(second, first, " Boats rest.\nUser: and").prompt
    assert whole.startswith(first.prompt + " Boats rest.\n\nUser: Now make them rhyme.")
    vicuna = SpecBench(path="examples", template="vicuna")
    first, second = vicuna.load()[:2]
    whole = vicuna.continued(second, first, " Boats rest. ").prompt
    assert whole.count("A chat between") == 1
    assert "ASSISTANT: Boats rest.</s>USER: Now make them rhyme. ASSISTANT:" in whole
    with pytest.raises(ValueError, match=r"task\.path=<file>: download http"):
        SpecBench()


def test_chat_goes_through_the_tokenizers_template(target):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT
    task = SpecBench(path="examples", template="chat")
    first, second = task.load()[:2]
    assert tokenizer.decode(prompt_ids(tokenizer, first)) == f"<user>{first.prompt}<assistant>"
    later = prompt_ids(tokenizer, task.continued(second, first, "Boats."))
    assert tokenizer.decode(later).endswith(f"<assistant>Boats.<user>{second.prompt}<assistant>")
    check_chat(tokenizer, [first])
    with pytest.raises(
        ValueError, match=r"task\.template=chat needs a tokenizer with a chat templ"
    ):
        Bench(target, [target], task, [first], {}, 2)


def test_context_comes_from_the_prompts_before():
    tokenizer = byte_tokenizer()
    examples = [Example(str(n), letter * 10) for n, letter in enumerate("abc")]
    longer = with_context(examples[1:2], examples, tokenizer, 30)
    assert longer[0].prompt == "ccccccc\n\n" + "aaaaaaaaaa\n\n" + "bbbbbbbbbb"
    assert with_context(examples[:1], examples, tokenizer, 5) == examples[:1]
    with pytest.raises(ValueError, match="context_tokens=99 is more than all"):
        with_context(examples, examples, tokenizer, 99)
    with pytest.raises(ValueError, match="plain prompts only"):
        with_context(TURNS, TURNS, tokenizer, 5)


def test_corpus_scores_are_by_decoder_and_leave_failures_out(target, tmp_path):
    samples = run(target, tmp_path, {"broken": FailsAt, "greedy": RootOnly})
    found = corpus_scores(Echo(), TURNS, samples)
    good = [s for s in samples if not s.error]
    assert found["greedy"] == {"completions": sum(s.decoder == "greedy" for s in good)}
    assert sum(row["completions"] for row in found.values()) == len(good)
    assert corpus_scores(SpecBench(path="examples"), TURNS, samples) == {}
