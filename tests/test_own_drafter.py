"""The code in docs/own_drafter.md runs exactly as printed."""

import json
import re
import shlex
import sys

import pytest
from composing import ROOT
from hydra.core.global_hydra import GlobalHydra

from ouroboros.cli.main import main

TEXT = (ROOT / "docs" / "own_drafter.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.slow
def test_the_documents_code_runs(tmp_path, monkeypatch, capsys):
    drafter, *uses = blocks("python")
    (tmp_path / "mine.py").write_text(drafter)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    known: dict = {}
    for use in uses:
        exec(use, known)
    documents = {}
    for line in "".join(blocks("bash")).splitlines():
        program, *rest = shlex.split(line)
        if program == "export":
            continue
        assert program == "ouroboros"
        monkeypatch.setattr(sys, "argv", ["ouroboros"])
        GlobalHydra.instance().clear()
        ended = main(rest)
        assert not ended, capsys.readouterr().err
        documents[rest[0]] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert documents["bench"]["decoders"]["mine"]["acceptance_length"] > 1
    assert documents["replay"]["decoders"]["mine"]["tokens_per_target_call"] > 1
    assert documents["audit"]["bugs"] == 0
