"""`ouroboros tune`: what cannot be tuned is one line."""

from __future__ import annotations

import sys

from ouroboros.commands import tune


def test_a_decoder_without_a_space_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tune", "--decoders", "speculative", "medusa"])
    assert tune.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("error: nothing to tune of medusa: conf/tune has hf_assisted")
    assert error.count("\n") == 1


def test_a_model_that_there_is_not_is_told_in_one_line(monkeypatch, capsys):
    arguments = ["--decoders", "lookahead", "--overrides", "model=hf", "model.target=no/such"]
    monkeypatch.setattr(sys, "argv", ["tune", *arguments])
    assert tune.main() == 2
    assert capsys.readouterr().err.startswith("error: cannot load 'no/such'")
