"""Conversations, chat templates and longer contexts: from an example to the prompt's ids."""

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from bench_models import TextTask, bench_of, byte_tokenizer, ran, tiny_llama

from ouroboros.bench.metrics.metrics import corpus_scores
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.audit import audit_run, load_audit
from ouroboros.bench.run.folder import SAMPLES
from ouroboros.bench.run.prompts import PromptBuilder
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.bench.tasks.specbench import SpecBench
from ouroboros.bench.tasks.task import Example, fingerprint, select
from ouroboros.decode import RootOnly
from ouroboros.engine.model import CachedModel
from ouroboros.models.vocab import eos_ids

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
TURNS = [Example("a/1", "a"), Example("a/2", "b", follows="a/1"), Example("c/1", "c", group="x")]


class Echo(TextTask):
    """Each later prompt quotes the conversation before it."""

    def continued(self, example, before, answer):
        return replace(example, prompt=f"{before.prompt}[{answer}]{example.prompt}")

    def corpus_scores(self, pairs):
        return {"completions": np.float32(len(pairs))}


class Broken(RootOnly):
    """Fails at prompts of one token."""

    def propose(self, tokens, budget):
        if len(tokens) == 1:
            raise RuntimeError("broken")
        return super().propose(tokens, budget)


def run(pair, path, decoders) -> list[Sample]:
    bench = bench_of(pair[:1], Echo(max_new=4), decoders, examples=TURNS, repeats=2)
    return ran(bench, path).load_samples()


def test_every_decoder_goes_on_from_the_first_ones_answer(pair, tmp_path):
    class Other(RootOnly):
        """Meets the same prompts, wherever it stands in the order."""

    samples = run(pair, tmp_path, {"greedy": RootOnly, "other": Other})
    by_key = {s.key: s for s in samples}
    assert not any(s.error for s in samples)
    for repeat in (0, 1):
        first, later = by_key["a/1", "greedy", repeat], by_key["a/2", "other", repeat]
        expected = f"a[{first.text}]b"
        assert later.prompt_tokens == len(pair[0].tokenizer(expected).input_ids)
        assert later.new_tokens == by_key["a/2", "greedy", repeat].new_tokens


def test_a_resumed_conversation_goes_on_from_the_answer_on_disk(pair, tmp_path):
    decoders = {"greedy": RootOnly, "other": RootOnly}
    whole = run(pair, tmp_path, decoders)
    path = tmp_path / SAMPLES
    lines = path.read_text().splitlines(keepends=True)
    changed = {**json.loads(lines[0]), "text": "a much longer answer"}
    path.write_text(json.dumps(changed) + "\n" + lines[1])
    again = {s.key: s for s in run(pair, tmp_path, decoders)}
    assert len(again) == len(whole)
    assert again["a/2", "other", 0].prompt_tokens > 20
    assert again["a/2", "other", 1].prompt_tokens < 20


def test_a_failed_turn_fails_the_later_one_for_every_decoder(pair, tmp_path):
    samples = run(pair, tmp_path, {"broken": Broken, "greedy": RootOnly})
    failed = {s.key[:2]: s.error for s in samples if s.error and s.repeat == 0}
    assert failed["a/1", "broken"] == "RuntimeError: broken"
    reason = "ValueError: broken failed at the turn before: RuntimeError: broken"
    assert failed["a/2", "broken"] == failed["a/2", "greedy"] == reason
    assert ("a/1", "greedy") not in failed


def test_selecting_keeps_the_turns_of_a_conversation_together():
    pairs = [(Example(f"{n}/1", "p"), Example(f"{n}/2", "q", follows=f"{n}/1")) for n in range(6)]
    examples = [turn for pair in pairs for turn in pair]
    chosen = [e.id for e in select(examples, limit=2, stride=3)]
    assert chosen == ["0/1", "0/2", "3/1", "3/2"]
    shuffled = [e.id for e in select(examples, limit=None, shuffle=1)]
    assert sorted(shuffled) == [e.id for e in examples] and shuffled != sorted(shuffled)
    assert all(b == a[:-1] + "2" for a, b in zip(shuffled[::2], shuffled[1::2], strict=True))
    for wrong, says in ((examples[-1:], "5/2 follows '5/1', which does not"), ([], "no examples")):
        with pytest.raises(ValueError, match=says):
            select(wrong, limit=None)


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


def test_chat_goes_through_the_tokenizers_template(pair):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT
    prompts = PromptBuilder(tokenizer)
    task = SpecBench(path="examples", template="chat")
    first, second = task.load()[:2]
    assert tokenizer.decode(prompts.ids(first)) == f"<user>{first.prompt}<assistant>"
    later = prompts.ids(task.continued(second, first, "Boats."))
    assert tokenizer.decode(later).endswith(f"<assistant>Boats.<user>{second.prompt}<assistant>")
    with pytest.raises(ValueError, match=r"task\.template=chat needs a tokenizer with a chat"):
        bench_of(pair, task, {})


@pytest.fixture
def ticking(pair, monkeypatch):
    """The target with a chat template whose clock differs at every rendering."""
    tokenizer, ticks = byte_tokenizer(), count()
    tokenizer.chat_template = "{{ tick }}" + CHAT
    render = tokenizer.apply_chat_template
    monkeypatch.setattr(
        tokenizer,
        "apply_chat_template",
        lambda *args, **how: render(*args, tick=next(ticks), **how),
    )
    return CachedModel(pair[0].model, tokenizer=tokenizer)


def test_a_prompt_with_a_clock_is_the_same_for_all_decoders_resumes_and_audits(ticking, tmp_path):
    task = SpecBench(path="examples", template="chat")
    decoders = {"greedy": RootOnly, "other": RootOnly}
    how = {"examples": task.load()[:3], "max_new": 6, "repeats": 2}
    folder = ran(bench_of([ticking], task, decoders, **how), tmp_path)
    whole = {s.key: s.new_tokens for s in folder.load_samples()}
    texts = folder.load_prompts()
    assert len(texts) == 3, "repeats at temperature 0 have the same prompts"
    assert all(whole[example, "other", n] == ids for (example, _, n), ids in whole.items())
    path = tmp_path / SAMPLES
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    resumed = bench_of([ticking], task, decoders, **how)
    assert {s.key: s.new_tokens for s in ran(resumed, tmp_path).load_samples()} == whole
    assert folder.load_prompts() == texts
    folder.save_run({}, status="finished")
    audit_run(bench_of([ticking], task, decoders, **how), folder, controls=True)
    verdicts = [f["verdict"] for row in load_audit(folder) for f in row.findings.values()]
    assert len(verdicts) == 12 and set(verdicts) == {"identical"}


def test_arguments_of_the_chat_template():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% if not thinking|default(true) %}<no think>{% endif %}" + CHAT
    given = {"thinking": False, "enable_thinking": False, "date_string": None}
    task = Prompts(path="examples", template="chat", template_args=given)
    first, prompts = task.load()[0], PromptBuilder(tokenizer, task.template_args)
    assert tokenizer.decode(prompts.ids(first)).startswith("<no think><user>")
    done = Prompts(path="examples", template="chat").prompt.example("x", {"prompt": " <eos>a"}, {})
    with pytest.raises(ValueError, match=r"of x begins with <eos>, as if .*task\.template=plain"):
        prompts.ids(done)
    tokenizer.chat_template = "{{ raise_exception('no user here') }}"
    with pytest.raises(ValueError, match=r"template fails for .* \(no user here\).*template=plain"):
        PromptBuilder(tokenizer).ids(first)


TURN = "<user>{{ messages[0].content }}{% for m in messages[1:] %}<bot>{{ m.content }}"


@pytest.mark.parametrize(
    ("template", "config_eos", "ends"),
    [
        (None, None, {"<eos>"}),
        (None, "</s>", {"</s>", "<eos>"}),
        (TURN + "<turn>\n{% endfor %}", "</s>", {"</s>", "<eos>", "<turn>"}),
        (TURN + "\n<b>{% endfor %}", None, {"<eos>"}),
        ("{{ raise_exception('no assistant') }}", None, {"<eos>"}),
    ],
)
def test_a_completion_ends_at_the_ends_of_model_tokenizer_and_template(template, config_eos, ends):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<turn>"])  # some tokenizers do not call it special
    tokenizer.add_special_tokens({"pad_token": "</s>"})
    tokenizer.chat_template = template
    model = tiny_llama(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.generation_config.eos_token_id = config_eos and tokenizer.convert_tokens_to_ids(
        config_eos
    )
    target = CachedModel(model, tokenizer=tokenizer)
    assert set(tokenizer.convert_ids_to_tokens(sorted(eos_ids(target)))) == ends


def test_an_end_token_is_no_text_even_if_it_is_not_special(pair, tmp_path):
    task, decoders = TextTask("ab"), {"greedy": RootOnly}
    (whole,) = ran(bench_of(pair[:1], task, decoders), tmp_path).load_samples()
    end = next(one for one in whole.new_tokens if one != whole.new_tokens[0])
    model = tiny_llama(0)
    model.generation_config.eos_token_id = end
    ended = [CachedModel(model, tokenizer=byte_tokenizer())]
    (sample,) = ran(bench_of(ended, task, decoders), tmp_path / "again").load_samples()
    assert sample.finish == "eos" and sample.new_tokens[-1] == end
    assert sample.text and sample.text == byte_tokenizer().decode(sample.new_tokens[:-1])


def test_groups_are_kept_and_corpus_scores_are_by_decoder_without_failures(pair, tmp_path):
    samples = run(pair, tmp_path, {"broken": Broken, "greedy": RootOnly})
    assert {s.example: s.group for s in samples} == {"a/1": "", "a/2": "", "c/1": "x"}
    found = corpus_scores(Echo(), TURNS, samples)
    good = [s.decoder for s in samples if not s.error]
    assert json.loads(json.dumps(found)) == {"greedy": {"completions": good.count("greedy")}}
