"""The estimates' features do not depend on the temperature of sampling."""

import json

import numpy as np
import pytest
from growing_texts import chain_text, growth
from scipy.special import softmax

from ouroboros.core.select import gumbel
from ouroboros.drafters.draft_tree import candidates
from ouroboros.drafters.draft_tree.candidates import MAX_DRAFT_ODDS, MAX_MARGIN, Weights
from ouroboros.drafters.draft_tree.phrase_index import fill_path
from ouroboros.drafters.draft_tree.state import DRAFT_FEATURES

LOGITS = np.array([3.0, 1.5])
TEXT = chain_text(60, 12)
FIRST, SECOND = TEXT[-3], TEXT[-2]  # the index knows the first alone
FROM_DRAFT = "the draft's margin", "log-odds of the draft's share"


def options(grown, ids, scores, shares) -> dict[int, dict[str, float]]:
    """Features by token of all that may follow the root, where the draft ranks `ids`."""
    s, ranks = grown.state, len(ids)
    s.ranked[0, :ranks], s.ranked_score[0, :ranks], s.ranked_share[0, :ranks] = ids, scores, shares
    fill_path(s, 0)
    candidates.list_options(s, grown.memory, 0, ranks)
    rows = zip(s.option_token[: s.options].tolist(), s.features.tolist(), strict=False)
    return {token: dict(zip(DRAFT_FEATURES, row, strict=True)) for token, row in rows}


def features(
    temperature: float, logits=LOGITS, *, of=FIRST, seed=None, ids=(FIRST, SECOND)
) -> dict[str, float]:
    """Features of the token `of` after a text, where the draft ranks `ids` by those logits."""
    grown = growth(vocab=12)
    grown.start(temperature=temperature, seed=seed)
    grown.begin(TEXT, 10, 10)
    scores = np.array(logits) / (temperature or 1.0)
    return options(grown, ids, scores, softmax(scores.astype(np.float32)).astype(float))[of]


@pytest.mark.parametrize(
    ("gap", "of"), [(1.5, FIRST), (1.5, SECOND), (3.0, FIRST), (3.0, SECOND), (30.0, FIRST)]
)
def test_the_features_are_those_of_greedy_decoding_at_any_temperature(gap, of):
    """Scores grow as 1 / T, and with them a wrong draft's margin: that makes it no surer. However
    little the rest is: at T = 0.1 a gap of 3 logits leaves it 1e-13."""
    cold = features(0.0, [gap, 0.0], of=of)
    assert abs(cold["the draft's margin"]) == pytest.approx(min(gap, MAX_MARGIN))
    kept = {name: value for name, value in cold.items() if "temperature" not in name}
    for temperature in (0.1, 0.3, 1.0):
        warm = features(temperature, [gap, 0.0], of=of)
        assert {name: warm[name] for name in kept} == pytest.approx(kept)
        for name in FROM_DRAFT:
            assert warm[f"temperature x {name}"] == pytest.approx(temperature * warm[name])


@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.4, 1.0])
def test_what_the_draft_rules_out_is_ruled_out_at_any_temperature(temperature):
    """As top_k = 1 does, and top_p often."""
    one_left = [3.0, -np.inf]
    only = features(temperature, one_left)
    assert [only[name] for name in FROM_DRAFT] == [MAX_MARGIN, MAX_DRAFT_ODDS]
    out = features(temperature, one_left, ids=(SECOND, FIRST))
    assert out["not among the draft's ranks"] == 1
    assert [out[name] for name in FROM_DRAFT] == [-MAX_MARGIN, -MAX_DRAFT_ODDS]


@pytest.mark.parametrize("seed", [0, 1, 123456789, 2**62 + 12345])
@pytest.mark.parametrize("position", [0, 7, 4095])
def test_the_noise_of_a_token_is_the_samplers(seed, position):
    row = gumbel(seed, [position], 300, "cpu")[0].numpy()
    key = candidates.position_key(seed, position)
    assert [np.float32(candidates.gumbel_of(key, token)) for token in range(300)] == row.tolist()


def test_weights_are_read_back(tmp_path):
    shipped = Weights.load()
    shipped.save(tmp_path / "weights.json")
    assert Weights.load(tmp_path / "weights.json") == shipped
    for content in ("{}", "[", json.dumps({"format": "ouroboros-estimates-1", "index": {"a": 1}})):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(ValueError, match="holds no weights"):
            Weights.load(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="cannot read"):
        Weights.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="fit them again"):
        Weights((1.0,), (2.0,), (1.0,), (2.0,))
