"""Mistakes, damage and interruptions: one clear line with the remedy, for every command."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from itertools import product
from unittest.mock import Mock

import pytest
from tiny import mostly_slow

from ouroboros.cli import main as door

SHORT = ["task=prompts", "task.path=one.jsonl", "max_new=4", "threads=1"]
DRAFTING = "decoder=[greedy,speculative]"
TUNE = ["prompts=[one.jsonl]", "max_new=4", "trials=1", "temperatures=[0]"]
COMMANDS: dict[str, Callable[..., list[str]]] = {
    "bench": lambda *own: [*SHORT, DRAFTING, "audit=none", *own],
    "replay": lambda *own: ["recording=one.jsonl", DRAFTING, *own],
    "generate": lambda *own: ["abc", "decoder=speculative", "max_new=4", *own],
    "tune": lambda *own: [*TUNE, "decoder=speculative", *own],
}
"""The commands that load models, and how they are called with overrides."""
MISTAKES = {
    "model.target=no/such": "'no/such': We couldn't connect",
    "model=nosuch": "there is no model 'nosuch'; choose from codellama-34b-7b",
    "model.draft=./nosuch": "cannot load './nosuch': there is no such folder",
    "model.draft=damaged": "cannot load 'damaged': its weights are damaged (Error while des",
    "model.draft=other": "the tokenizers differ: id 258 is 'ab' for the target and",
    "model.device=nowhere": "model.device=nowhere: give cpu, cuda or cuda:<number>",
    "model.device=cuda:99": "model.device=cuda:99: torch sees",
    "model.draft=null": "model.draft",
    "model.target=null": "model.target",
    "nosuch=1": "the config has no option 'nosuch'; choose from",
    "decoder.speculative.gama=1": "no option 'gama' (did you mean gamma?)",
    "decoder=[specultive]": "no decoder 'specultive' (did you mean speculative?)",
    "model.options.revision=main": "+model.options.revision=... adds one",
}
OTHERS = {
    "generate": [
        (["abc", "upon"], "error: upon: write options as NAME=VALUE"),
        (["abc" * 9000], "the model's context 8192: shorten the prompt"),
        (["abc", "decoder=hf_greedy"], "hf_greedy runs on another engine"),
        (["abc", "+task.template_args.a=1"], "needs a chat template, but task.template=plain"),
    ],
    "bench": [
        (["task=prompts", "task.path=damaged.jsonl"], "damaged.jsonl, line 1: not JSON"),
        ([*SHORT, "costs=damaged.jsonl"], "damaged.jsonl holds no costs: give verify_ms"),
        ([*SHORT, "results_dir=one.jsonl"], "one.jsonl: File exists; give another path"),
        ([*SHORT, "costs=nope"], "costs=nope is neither a file nor one of epyc, flat"),
        (["task=prompts"], "task.path"),
        (["task.stop=[<|end|>]"], "texts in quotes, as NAME=\"['a','b']\""),
        (["task=prompts", "task.path=none.jsonl"], "none.jsonl"),
        (["task.limt=3"], "task has no option 'limt' (did you mean limit?); choose from exec"),
        ([*SHORT, "decoder=speculative", "decoder.speculative.gamma=0"], "gamma"),
        ([*SHORT, "decoder=greedy", "decoder.racer.ngram=3"], "this run has no decoder racer: add"),
        ([*SHORT, "decoder=[]"], "decoder=[] leaves nothing to run"),
        ([*SHORT, DRAFTING, "decoder.speculative.draft=other"], "all decoders draft with model.d"),
    ],
    "replay": [
        ([], "error: give recording=<results folder"),
        (["recording=none.jsonl"], "cannot read none.jsonl"),
        (["recording=target"], "not a results folder"),
        (["recording=empty.jsonl"], "the recording empty.jsonl is empty"),
        (["recording=damaged.jsonl"], "damaged.jsonl, line 1: not JSON"),
        (["recording=prompts.jsonl"], 'prompts.jsonl, line 1: give {"prompt": text, "completion"'),
        (["recording=one.jsonl", "decoder=[hf_greedy]"], "HFGenerate is another engine"),
    ],
    "report": [
        (["nosuch"], "nosuch is not a results folder: it has no run.json"),
        ([], "error: FOLDER ... is missing: ouroboros report FOLDER ..."),
        (["damaged"], "damaged/run.json"),
        (["target", "out=damaged"], "out=damaged is a results folder: give another"),
    ],
    "audit": [
        (["nosuch"], "nosuch is not a results folder: it has no run.json"),
        (["damaged"], "damaged/run.json"),
    ],
    "tune": [
        (["decoder=greedy"], "nothing to tune of greedy: conf/tune has"),
        (["trials=0"], "trials=0: give a whole number, 1 or more"),
    ],
}


@pytest.fixture(scope="module", autouse=True)
def damage(saved_pair) -> None:
    """A damaged model, a draft with another tokenizer, and prompts that cannot be used."""
    for name in ("damaged", "other"):
        shutil.copytree(saved_pair / "draft", saved_pair / name)
    weights = saved_pair / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (saved_pair / "damaged" / "run.json").write_text("{")
    tokenizer = json.loads((saved_pair / "other" / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    last, before = sorted(ids, key=ids.get)[-2:]
    ids[last], ids[before] = ids[before], ids[last]
    (saved_pair / "other" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (saved_pair / "damaged.jsonl").write_text('{"prompt": ')
    (saved_pair / "prompts.jsonl").write_text('{"prompt": "a"}')
    (saved_pair / "empty.jsonl").write_text("")
    row = json.dumps({"prompt": "abc", "completion": "abc"})
    (saved_pair / "one.jsonl").write_text(row + "\n")


@pytest.fixture
def fails(call, saved_pair, monkeypatch):
    """Call a command that must fail; its exit code is 2, and the error one line."""

    def run(name: str, *argv: str, code: int = 2) -> str:
        monkeypatch.chdir(saved_pair)
        before = sorted(saved_pair.iterdir())
        found, out, err = call(name, *argv, pair=False)
        assert found == code and "Traceback" not in err + out, err
        lines = [line for line in err.splitlines() if "error:" in line]
        assert len(lines) == 1 and out == "" and "usage" not in err, err
        assert sorted(saved_pair.iterdir()) == before
        return lines[0]

    return run


PAIR = ("model=hf", "model.target=target", "model.draft=draft", "model.dtype=float32")
QUICK = [(name, m) for name in COMMANDS for m in MISTAKES if name == "bench" or m == "nosuch=1"]


@pytest.mark.parametrize(("name", "mistake"), mostly_slow(product(COMMANDS, MISTAKES), quick=QUICK))
def test_a_mistake_is_one_line_for_every_command(fails, name, mistake):
    own = PAIR[:0] if mistake.startswith("model=") else PAIR
    found = fails(name, *COMMANDS[name](*own, mistake))
    assert MISTAKES[mistake] in found
    assert ("adds one" in found) == ("adds one" in MISTAKES[mistake])


@pytest.mark.parametrize(
    ("name", "argv", "says"), [(name, *case) for name, own in OTHERS.items() for case in own]
)
def test_a_command_s_own_mistakes(fails, name, argv, says):
    own = {"report": [], "audit": []}.get(name, PAIR)
    assert says in fails(name, *argv, *own)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: the disk is full: free some"),
        (ImportError("Numba needs NumPy 2.4"), 2, "error: Numba needs NumPy 2.4\n"),
        (KeyboardInterrupt(), 130, "interrupted: rerun bench, tune or distill"),
    ],
)
def test_a_full_disk_a_broken_package_and_ctrl_c_are_one_line(call, monkeypatch, error, code, says):
    monkeypatch.setattr(door, "run_command", Mock(side_effect=error))
    found, out, err = call("bench", pair=False)
    assert (found, out) == (code, "") and err.count("\n") == 1 and says in err


def test_ctrl_c_before_the_first_sample_prints_no_table(call, saved_pair, monkeypatch):
    monkeypatch.chdir(saved_pair)
    monkeypatch.setattr("ouroboros.bench.run.run.Bench.run", Mock(side_effect=KeyboardInterrupt))
    code, out, err = call("bench", *COMMANDS["bench"](*PAIR), pair=False)
    assert (code, out) == (130, "") and "to resume" in err and "Traceback" not in err
