"""Runs with the user's own modules and files."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest

from ouroboros.bench.run.folder import FAILURES, TOKENIZER, ResultsFolder
from ouroboros.bench.run.run import rebuild

DRAFTER = """
from helper import NUMBER
from ouroboros.baselines import Greedy

class Mine(Greedy):
    def propose(self, tokens, budget):
        if NUMBER and len(tokens) > NUMBER:
            raise RuntimeError("not on /a/machine/of/mine")
        return super().propose(tokens, budget)
"""
RULE = ["task=prompts", "max_new=4", "threads=1", "audit=none"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A drafter of one's own, and what it imports."""
    (tmp_path / "mine_drafter.py").write_text(DRAFTER)
    (tmp_path / "helper.py").write_text("NUMBER = 0\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "abc"}\n{"prompt": "bcd"}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("mine_drafter", "helper"):
        sys.modules.pop(name, None)


def test_failures_are_kept_and_other_settings_do_not_resume(mine, run_bench):
    own = ["decoder=[greedy]", "+decoder.mine._target_=mine_drafter.Mine"]
    folder = mine / "out"
    rule = [*RULE, *own, f"task.path={mine / 'rows.jsonl'}", f"results_dir={folder}"]
    (mine / "helper.py").write_text("NUMBER = 3\n")
    sys.modules.pop("helper", None)
    code, _, error = run_bench(*rule)
    assert code == 3 and "2 failed" in error
    (renamed := mine / "renamed.jsonl").write_text((mine / "rows.jsonl").read_text())
    with pytest.raises(ValueError, match="replace paths only, and keep the file's name"):
        rebuild(ResultsFolder(folder), {"task.path": str(renamed)})
    rows = [json.loads(line) for line in (folder / FAILURES).read_text().splitlines()]
    assert [row["key"] for row in rows] == [["rows/1", "mine", 0], ["rows/2", "mine", 0]]
    assert "raise RuntimeError" in rows[0]["traceback"] and str(mine) not in rows[0]["traceback"]
    change = "threads=2", "task.limit=1", "retry_failed=true"
    error = run_bench(*rule, *change)[2]
    assert "task.limit was None, is 1" in error and "threads was 1, is 2" in error


@pytest.mark.slow
def test_a_run_on_folders_asks_for_their_place(mine, saved_pair, call, run_bench, monkeypatch):
    folder = mine / "out"
    for role in ("target", "draft"):
        shutil.copytree(saved_pair / role, mine / role)
    places = [f"model.{role}={mine / role}" for role in ("target", "draft")]
    rule = [*RULE, "decoder=[greedy,speculative]", f"task.path={mine / 'rows.jsonl'}"]
    assert run_bench(*rule, *places, f"results_dir={folder}")[0] == 0
    run = json.loads((folder / "run.json").read_text())
    assert run["model"]["target"] == "target" and "model.target" in run["files"]
    rows = f"task.path={mine / 'rows.jsonl'}"

    def told(*overrides: str) -> str:
        return call("audit", str(folder), *overrides, pair=False)[2].splitlines()[-1]

    monkeypatch.chdir(mine / "out")
    lost = "model.draft=<path> model.target=<path>"
    assert f"give the paths, as {lost} task.path=<path>" in told()
    assert told(rows).endswith(f"keeps names only: give the paths, as {lost}")
    assert "give the paths, as task.path=" in told(*places)
    assert "error" not in told(rows, *places)
    recording = [f"recording={folder}", "decoder=[greedy]"]
    assert "give the paths, as task.path=" in call("replay", *recording)[2]
    monkeypatch.chdir(mine / "out")
    tokenizer = [f"tokenizer={mine / 'target'}"]
    for given in (tokenizer, []):  # the run kept its tokenizer
        assert not call("report", str(folder), *given, pair=False)[0]
        assert not re.search(r'"\d+ "', (folder / "report" / "report.html").read_text())
    (folder / TOKENIZER).unlink()
    assert not call("report", str(folder), pair=False)[0]
    assert re.search(r'"\d+ "', (folder / "report" / "report.html").read_text())
    error = call("report", str(folder), f"tokenizer={mine}", pair=False)[2]
    assert "no tokenizer of the run's model" in error
