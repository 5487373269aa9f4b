"""Weights of Ouroboros' estimators fitted to a pair."""

import json

import fit_weights
import pytest
from fit_weights import calibrate, main
from tiny import prompt_of

from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.state import PHRASE_FEATURES


def test_weights_are_fitted_on_runs_of_the_pair(pair, monkeypatch):
    for name, value in (("TEMPERATURES", (0.0, 0.8)), ("MAX_NEW", 12), ("ROUNDS", 1)):
        monkeypatch.setattr(fit_weights, name, value)
    prompts = [prompt_of(8, seed) for seed in range(6)]
    made = calibrate(*pair, prompts, pair="tiny")
    assert made == calibrate(*pair, prompts, pair="tiny") != Weights.load()
    earlier = PHRASE_FEATURES.index("earlier texts alone")
    assert made.index[earlier] == Weights.load().index[earlier], "no text was an earlier one"
    for part in ("index", "draft"):
        found = made.about[part]
        assert found["observations"] > 20 and found["log_loss"] < found["log_loss_of_the_mean"]
    worse = calibrate(*pair, prompts, noise=[0.0, 0.5])  # with runs of a disturbed draft
    assert worse.about["draft"]["observations"] > made.about["draft"]["observations"]
    with pytest.raises(SystemExit, match="3 prompts are too few"):
        calibrate(*pair, prompts[:3])


def test_the_script_writes_weights_and_their_quality(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fit_weights, "TEMPERATURES", (0.0,))
    monkeypatch.setattr(fit_weights, "MAX_NEW", 6)
    prompts, out = tmp_path / "mine.jsonl", tmp_path / "new" / "w.json"
    prompts.write_text("".join(json.dumps({"prompt": f"ab{i}cd ef"}) + "\n" for i in range(5)))
    main([str(out), "--prompts", str(prompts), "--overrides", "model.standin=null", "threads=1"])
    assert "log_loss" in capsys.readouterr().out
    assert Weights.load(out).about["prompts"] == 5
