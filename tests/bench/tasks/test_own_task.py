"""The code in docs/own_task.md runs, by dotted path and by entry point."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint

import pytest
from composing import ROOT, composed
from omegaconf.errors import OmegaConfBaseException

from ouroboros.bench.tasks import registry
from ouroboros.bench.tasks.registry import TaskSpec

PAGE = (ROOT / "docs" / "own_task.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def riddles(tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "riddles.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "riddles", raising=False)


def test_a_dotted_path_is_a_task():
    options = composed("task=plugin", "task._target_=riddles.Riddles", "task.limit=2")["task"]
    task, examples = TaskSpec.from_mapping(options).load()
    assert [e.prompt for e in examples] == ["2 + 2 =", "3 + 4 ="]
    assert task.score(examples[0], " 4") == {"exact_match": 1.0}
    with pytest.raises(OmegaConfBaseException, match="_target_"):
        composed("task=plugin")


def test_rows_of_a_file_need_a_load_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "Why?", "answer": "So."}))
    task, (example,) = TaskSpec("riddles.Trivia", {"path": str(path)}).load()
    assert example.prompt == "Q: Why?\nA:" and task.stop == ("\nQ:",)
    with pytest.raises(ValueError, match=r"task=trivia needs task\.path=<file>: JSONL"):
        TaskSpec("riddles.Trivia").load()


def test_an_entry_point_is_found_by_its_name_and_imported_only_when_asked(monkeypatch):
    own = [
        EntryPoint("riddles", "riddles:Riddles", "ouroboros.tasks"),
        EntryPoint("broken", "no_such_module:Task", "ouroboros.tasks"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: own)
    spec = TaskSpec("riddles")
    assert spec.load()[0].name == "riddles"
    assert spec.to_mapping()["_target_"] == "riddles.Riddles"
    with pytest.raises(ValueError, match=r"no_such_module\.Task: there is no such class"):
        TaskSpec("broken").load()
    with pytest.raises(ValueError, match=r"no task 'ridles' \(did you mean riddles\?\)"):
        TaskSpec("ridles").load()
    with pytest.raises(ValueError, match=r"Counter is no task: it has no name, version"):
        TaskSpec("collections.Counter").load()


@pytest.mark.parametrize("stop", ["END", ["\n", ""], [1]])
def test_stop_strings_are_a_list_of_texts(tmp_path, monkeypatch, stop):
    """`task.stop=END` stopped at each of its letters."""
    wanted = re.escape(f"task.stop={stop!r}: give a list of texts, none of them empty")
    with pytest.raises(ValueError, match=wanted):
        TaskSpec("prompts", {"path": "examples", "stop": stop}).load()
    monkeypatch.setattr("riddles.Riddles.stop", stop)
    with pytest.raises(ValueError, match=wanted):
        TaskSpec("riddles.Riddles").load()
