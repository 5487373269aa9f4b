"""A run on the user's own folders and files: run.json has no paths, so they are given again."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from ouroboros.bench.run.folder import TOKENIZER, ResultsFolder
from ouroboros.bench.run.run import rebuild

RULE = ["task=prompts", "max_new=4", "threads=1", "audit=none"]


@pytest.mark.slow
def test_a_run_on_folders_asks_for_their_place(tmp_path, saved_pair, call, run_bench, monkeypatch):
    folder, file = tmp_path / "out", tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "abc"}\n{"prompt": "bcd"}\n')
    for role in ("target", "draft"):
        shutil.copytree(saved_pair / role, tmp_path / role)
    places = [f"model.{role}={tmp_path / role}" for role in ("target", "draft")]
    rule = [*RULE, "decoder=[greedy,speculative]", f"task.path={file}"]
    assert run_bench(*rule, *places, f"results_dir={folder}")[0] == 0
    run = json.loads((folder / "run.json").read_text())
    assert run["model"]["target"] == "target" and "model.target" in run["files"]
    rows = f"task.path={file}"
    paths = {f"model.{role}": str(tmp_path / role) for role in ("target", "draft")}
    renamed = file.with_name("renamed.jsonl")
    renamed.write_text(file.read_text())
    with pytest.raises(ValueError, match="replace paths only, and keep the file's name"):
        rebuild(ResultsFolder(folder), {**paths, "task.path": str(renamed)})

    def told(*overrides: str) -> str:
        return call("audit", str(folder), *overrides, pair=False)[2].splitlines()[-1]

    monkeypatch.chdir(tmp_path / "out")
    lost = "model.draft=<path> model.target=<path>"
    assert f"give the paths, as {lost} task.path=<path>" in told()
    assert "give the paths, as task.path=" in told(*places)
    assert "error" not in told(rows, *places)
    recording = [f"recording={folder}", "decoder=[greedy]"]
    assert "give the paths, as task.path=" in call("replay", *recording)[2]
    monkeypatch.chdir(tmp_path / "out")  # where no folder has the target's name
    (folder / TOKENIZER).unlink()
    for given, ids in (([], True), ([f"tokenizer={tmp_path / 'target'}"], False)):
        assert not call("report", str(folder), *given, pair=False)[0]
        page = (folder / "report" / "report.html").read_text()
        assert bool(re.search(r'"\d+ "', page)) is ids
    error = call("report", str(folder), f"tokenizer={tmp_path}", pair=False)[2]
    assert "no tokenizer of the run's model" in error
