"""The output of `ouroboros generate`: text in whole characters, sources, times."""

import io
from functools import cache
from itertools import count

import pytest
from bench_models import save_pair, tiny_pair
from rich.console import Console

from ouroboros import CachedModel, argmax
from ouroboros.cli import generate
from ouroboros.cli.generate import Runner, closing_lines, coloured, columns, write
from ouroboros.decode import RootOnly


@cache
def target() -> CachedModel:
    return tiny_pair()[0]


def runner_of(name: str = "greedy", max_new: int = 12) -> Runner:
    rule = {"max_new": max_new, "eos": frozenset(), "choose": argmax}
    return Runner(name, target(), RootOnly(), target().tokenizer("def f").input_ids, **rule)


def test_a_race_is_on_one_engine_and_of_the_same_text(monkeypatch, call):
    engines = []

    class Noted(Runner):
        def __init__(self, name, target, *rest, **options):
            engines.append(target.describe_engine()["engine"])
            super().__init__(name, target, *rest, **options)

    monkeypatch.setattr(generate, "Runner", Noted)
    for engine in ("fused", "eager"):
        options = "race=true", "max_new=8", "temperature=0.8", "seed=3", f"model.engine={engine}"
        code, out, _ = call("generate", "def f", *options)
        assert code == 0 and "== greedy" in out and "== ouroboros" in out
        assert "the same text, token for token" in out
    assert engines == ["fused", "fused", "eager", "eager"]


def test_only_own_steps_are_timed(monkeypatch):
    first, second = runner_of("a", 3), runner_of("b", 3)
    monkeypatch.setattr(generate.time, "perf_counter", map(float, count()).__next__)
    calls = [(first.calls, second.calls) for _ in generate.turns([first, second])]
    behind_goes_next = [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]
    assert calls == [*behind_goes_next, (3, 3), (3, 3)]
    assert first.seconds == second.seconds > 0


def test_a_terminal_gets_no_control_characters_and_a_file_the_text_as_it_is():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=80)
    write(console, [("a\x1b[31mb\tc\n", "draft"), ("\x07\r", "target")])
    assert "\x1b[31m" not in out.getvalue() and "\x07" not in out.getvalue()
    assert str(coloured([("\x1b", "draft")])) == "\N{REPLACEMENT CHARACTER}"
    out = io.StringIO()
    write(Console(file=out, width=10), [("pa\tlong line of text\n", "draft"), ("b", "target")])
    assert out.getvalue() == "pa\tlong line of text\nb"


def test_columns_fit_and_show_the_end():
    one, two = runner_of("greedy"), runner_of("ouroboros")
    for runner in (one, two):
        runner.pieces = [(f"line {number}\n", "draft") for number in range(100)]
    console = Console(file=io.StringIO(), width=60, height=12, force_terminal=False)
    with console.capture() as shown:
        console.print(columns([one, two], console, whole=False))
    lines = shown.get().splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 60
    assert "line 99" in shown.get() and "line 0" not in shown.get()


def test_the_command_writes_text_figures_and_the_dtype(call):
    code, out, _ = call("generate", "def f", "max_new=8")
    assert code == 0 and out.startswith("def f") and "\x1b" not in out
    assert "ouroboros: 8 tokens in " in out and "tokens per target call, " in out
    for engine, warns in (("eager", True), ("fused", False)):  # fused calls are exact
        options = "model.dtype=bfloat16", f"model.engine={engine}", "max_new=8"
        code, out, _ = call("generate", "def f", *options)
        assert code == 0 and "per target call, bfloat16" in out
        assert ("warning: in bfloat16, rounding may resolve a near tie" in out) == warns


def test_a_prompt_is_a_users_turn_if_the_model_has_a_chat_template(call, tmp_path):
    pair = tiny_pair()
    pair[0].tokenizer.chat_template = "{{ thinking }}<user>{{ messages[0].content }}<bot>"
    save_pair(pair, tmp_path)
    options = ["decoder=greedy", "max_new=6", "model=hf", "model.dtype=float32"]
    options += [f"model.target={tmp_path / 'target'}"]
    texts = {}
    for more in ([], ["+task.template_args.thinking=1"], ["task.template=plain"]):
        code, out, err = call("generate", "def f", *options, *more, pair=False)
        assert code == 0, err
        chat = more[:1] != ["task.template=plain"]
        assert ("float32, chat template\n" in out) == chat
        texts[out.split("\n\ngreedy: ")[0]] = out.startswith("def f\n\n")
    assert list(texts.values()) == [True, True, False], "three different prompts"


@pytest.mark.parametrize("done", [True, False])
def test_a_race_compares_the_texts_but_an_interrupted_one_does_not(done):
    runners = runner_of("greedy"), runner_of("ouroboros")
    runners[0].tokens, runners[1].tokens = [1, 2], [1, 2, 3]
    for one in runners:
        one.done = done
    warning = "warning: the texts differ from token 3 on: a numeric tie, or a bug;"
    assert (warning in closing_lines(runners, Console(file=io.StringIO()))) == done
