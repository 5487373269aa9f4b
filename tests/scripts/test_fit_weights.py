"""Weights of Ouroboros' estimators fitted to a pair."""

import json

import fit_weights
import pytest
import torch
from fit_weights import calibrate, main, with_weight_noise
from tiny import prompt_of

from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.state import PHRASE_FEATURES
from ouroboros.tree import TokenTree


def test_a_disturbed_draft_is_another_and_always_the_same(pair):
    draft = pair[1]
    one, two = with_weight_noise(draft, 0.3), with_weight_noise(draft, 0.3)
    chain = TokenTree.chain(3, (4, 5))
    found, again, own = (
        model.score(model.new_sequence(), [3], chain).clone() for model in (one, two, draft)
    )
    assert torch.equal(found, again) and not torch.allclose(found, own)
    assert with_weight_noise(draft, 0.0) is draft


def test_weights_are_fitted_on_runs_of_the_pair(pair, monkeypatch):
    for name, value in (("TEMPERATURES", (0.0, 0.8)), ("MAX_NEW", 12), ("ROUNDS", 1)):
        monkeypatch.setattr(fit_weights, name, value)
    prompts = [prompt_of(8, seed) for seed in range(6)]
    made = calibrate(*pair, prompts, pair="tiny")
    again = calibrate(*pair, prompts, pair="tiny")
    assert made == again != Weights.load()
    earlier = PHRASE_FEATURES.index("earlier texts alone")
    assert made.index[earlier] == Weights.load().index[earlier], "no text was an earlier one"
    for part in ("index", "draft"):
        found = made.about[part]
        assert found["observations"] > 20 and found["log_loss"] < found["log_loss_of_the_mean"]
    assert made.ranked_index != Weights.load().ranked_index
    assert made.about["prompts"] == 6 and made.about["pair"] == "tiny"
    worse = calibrate(*pair, prompts, noise=[0.0, 0.5])
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
