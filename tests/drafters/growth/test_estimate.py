"""The estimates' features: what they say of a choice must not hang on how warm it is drawn."""

import numpy as np
import pytest
from growing_texts import chain_text, growth
from scipy.special import softmax

from ouroboros.drafters.growth.estimate import DRAFT
from ouroboros.drafters.growth.kids import consider
from ouroboros.drafters.growth.state import real, whole

LOGITS = np.array([3.0, 1.5])


def features(temperature: float) -> dict[str, float]:
    """Of the draft's first token after a text, which the draft ranks by those logits."""
    text = chain_text(60, 12)
    grown = growth(vocab=12)
    grown.start(temperature=temperature)
    grown.begin(text, 10, 10)
    unit = temperature or 1.0
    ids = whole([text[-3], text[-2]])
    grown.state.ranks = 2
    ranking = ids, real(LOGITS / unit), real(softmax(LOGITS / unit))
    found = dict(consider(grown.state, grown.memory, 0, ranking))
    return dict(zip(DRAFT, found[text[-3]], strict=True))


def test_what_the_draft_says_counts_in_logits_at_any_temperature():
    """Scores grow as 1 / T, and with them a wrong draft's margin: that makes it no surer."""
    cold = features(0.0)
    assert cold["the draft's margin"] == pytest.approx(1.5)
    for temperature in (0.3, 1.0):
        warm = features(temperature)
        for name in ("the draft's margin", "log-odds of the draft's share"):
            assert warm[name] == pytest.approx(cold[name]), name
            assert warm[f"temperature x {name}"] == pytest.approx(temperature * warm[name])


def test_at_a_low_temperature_the_features_are_those_of_greedy_decoding():
    cold, cool = features(0.0), features(0.1)
    assert {name: cool[name] for name in DRAFT if not name.startswith("temperature")} == {
        name: pytest.approx(value) for name, value in cold.items() if "temperature" not in name
    }
