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


def test_what_the_draft_says_counts_in_logits_at_any_temperature():
    """Scores grow as 1 / T, and with them a wrong draft's margin: that makes it no surer."""
    cold = features(0.0)
    assert cold["the draft's margin"] == pytest.approx(1.5)
    for temperature in (0.3, 1.0):
        warm = features(temperature)
        for name in FROM_DRAFT:
            assert warm[name] == pytest.approx(cold[name]), name
            assert warm[f"temperature x {name}"] == pytest.approx(temperature * warm[name])


@pytest.mark.parametrize(
    ("gap", "of"), [(1.5, FIRST), (1.5, SECOND), (3.0, FIRST), (3.0, SECOND), (30.0, FIRST)]
)
def test_at_a_low_temperature_the_features_are_those_of_greedy_decoding(gap, of):
    """However little the rest is then: at T = 0.1 a gap of 3 logits leaves it 1e-13."""
    cold, cool = features(0.0, [gap, 0.0], of=of), features(0.1, [gap, 0.0], of=of)
    assert {name: cool[name] for name in DRAFT_FEATURES if not name.startswith("temperature")} == {
        name: pytest.approx(value) for name, value in cold.items() if "temperature" not in name
    }


@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.4, 1.0])
def test_what_the_draft_rules_out_is_ruled_out_at_any_temperature(temperature):
    """As top_k = 1 does, and top_p often."""
    one_left = [3.0, -np.inf]
    only = features(temperature, one_left)
    assert [only[name] for name in FROM_DRAFT] == [MAX_MARGIN, MAX_DRAFT_ODDS]
    out = features(temperature, one_left, ids=(SECOND, FIRST))
    assert out["not among the draft's ranks"] == 1
    assert [out[name] for name in FROM_DRAFT] == [-MAX_MARGIN, -MAX_DRAFT_ODDS]


def test_what_the_draft_does_not_rank_counts_against_its_first():
    """A third token is as likely as the second, but two are ranked."""
    grown = growth(vocab=12)
    grown.start()
    grown.begin(TEXT, 10, 10)
    found = options(grown, [FIRST, SECOND], [0.0, 0.0], [0.5, 0.25])[FIRST]
    assert found["log-odds of the draft's share"] == pytest.approx(0, abs=1e-6)


def test_the_temperature_is_a_feature_alone_and_with_others():
    found = features(0.4, seed=7)
    key = candidates.position_key(7, len(TEXT))
    assert found["temperature"] == 0.4
    assert found["temperature x noise"] == pytest.approx(0.4 * candidates.gumbel_of(key, FIRST))
    for name in ("log-odds of the share", "log2(1 + match)"):
        assert found[f"temperature x {name}"] == pytest.approx(0.4 * found[name])
    assert found["log2(1 + match)"] > 0 and features(0.4)["temperature x noise"] == 0


def test_hit_rates_are_features():
    grown = growth(vocab=12)
    grown.start()
    s = grown.state
    s.phrase_hits, s.draft_hits = 0.25 * s.phrase_trials, 0.75 * s.draft_trials
    grown.begin(TEXT, 10, 10)
    found = options(grown, [FIRST, SECOND], LOGITS, softmax(LOGITS))[FIRST]
    assert found["log-odds of the index's hit rate"] == pytest.approx(-np.log(3))
    assert found["log-odds of the draft's hit rate"] == pytest.approx(np.log(3))


def test_earlier_texts_alone_are_a_feature():
    """Token 3 follows in this text too, token 5 in the earlier one only."""
    grown = growth(vocab=12, start=False)
    for text in ([1, 2, 5, 1, 2, 3], [2, 3, 2]):
        grown.start()
        grown.begin(text, 10, 10)
        grown.learn([4] * len(grown.proposal()), [0])
    grown.begin([2, 3, 2, 6, 2], 10, 10)
    found = options(grown, [3, 5], LOGITS, softmax(LOGITS))
    assert [found[token]["earlier texts alone"] for token in (3, 5)] == [0, 1]


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


@pytest.mark.parametrize(("truth", "grows"), [(FIRST, True), (SECOND, False)])
def test_estimates_after_a_ranking_learn_from_what_the_target_chose(truth, grows):
    grown, found = growth(vocab=12), []
    grown.begin(TEXT, 10, 10)
    s, shares = grown.state, softmax(LOGITS)
    for _ in range(20):
        s.ranked[0, :2], s.ranked_score[0, :2] = (FIRST, SECOND), LOGITS
        s.ranked_share[0, :2] = shares
        fill_path(s, 0)
        candidates.find_children(s, grown.memory, 0, 2)
        children = s.child_token[0].tolist()
        found.append(float(s.child_estimate[0, children.index(FIRST)]))
        candidates.learn_calibration(s, 0, truth)
    change = np.diff(found)
    assert (change > 0).all() if grows else (change < 0).all()
    assert grows or found[-1] < 0.6 < found[0]
