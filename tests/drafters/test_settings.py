"""Settings out of range are refused in one line that names the setting, its value and the range."""

from typing import Any

import pytest
from tiny import TableModel

from ouroboros import Ouroboros, OuroborosPaper, PhrasePool, Sampler, baselines

DRAFT = TableModel(4, seed=1)
BASE: dict[Any, dict] = {
    baselines.HFGenerate: {},
    baselines.Lookahead: {"window_size": 2, "ngram_size": 3, "verification_set_size": 2},
    Ouroboros: {},
    OuroborosPaper: {"draft": DRAFT},
    PhrasePool: {"phrase_len": 1, "per_key": 1},
    baselines.PromptLookup: {"max_ngram_size": 2, "num_tokens": 2},
    baselines.Racer: {},
    Sampler: {},
    baselines.Speculative: {"draft": DRAFT, "gamma": 2},
    baselines.SuffixDecoding: {"max_tokens": 4},
    baselines.TokenRecycling: {},
}
POOL = {"phrase_len": 9, "phrases": {}}
REFUSED = [
    (baselines.HFGenerate, {"mode": "beam"}, "mode 'beam' is not one of"),
    (baselines.HFGenerate, {"mode": "assisted"}, "needs a draft"),
    (baselines.HFGenerate, {"mode": "prompt_lookup"}, "needs prompt_lookup_num_tokens"),
    (baselines.HFGenerate, {"num_asistant_tokens": 3}, "no generation setting num_asistant_tokens"),
    (baselines.Lookahead, {"window_size": -1}, "window_size is -1; choose at least 0"),
    (baselines.Lookahead, {"ngram_size": 1}, "ngram_size is 1; choose at least 2"),
    (baselines.Lookahead, {"verification_set_size": -1}, "verification_set_size is -1"),
    (Ouroboros, {"pool_state": "warm"}, "'warm' is not one of cold, task, loaded"),
    (Ouroboros, {"pool_state": "loaded"}, "needs a pool: give pool="),
    (Ouroboros, {"pool": {}}, "would empty the pool"),
    (Ouroboros, {"pool": "p.json", "pool_state": "task"}, "give a drafter's state_dict"),
    (Ouroboros, {"max_nodes": 0}, "max_nodes is 0; choose 1 to 512"),
    (Ouroboros, {"children": 9}, "children is 9; choose 1 to 5"),
    (Ouroboros, {"draft_nodes": 0}, "draft_nodes is 0"),
    (Ouroboros, {"costs": "cheap"}, "costs=cheap is neither a file nor one of epyc, flat"),
    (Ouroboros, {"weights": "none.json"}, "cannot read the weights"),
    (OuroborosPaper, {"gamma": 0}, "gamma is 0; choose at least 1"),
    (OuroborosPaper, {"topk": -1}, "topk is -1"),
    (OuroborosPaper, {"ngram_size": 1}, "at least"),
    (OuroborosPaper, {"window_size": -1}, "window_size is -1"),
    (OuroborosPaper, {"pool_state": "task", "pool": POOL}, "phrases have 9 tokens"),
    (OuroborosPaper, {"draft": None}, "give draft="),
    (PhrasePool, {"phrase_len": 0}, "phrase_len is 0; choose at least 1"),
    (PhrasePool, {"per_key": -1}, "per_key is -1"),
    (baselines.PromptLookup, {"max_ngram_size": 0}, "max_ngram_size is 0"),
    (baselines.PromptLookup, {"num_tokens": 0}, "num_tokens is 0"),
    (baselines.Racer, {"nodes": 0}, "nodes is 0"),
    (baselines.Racer, {"ngram": 2}, "shortest is 2; choose 1 to 1"),
    (baselines.Racer, {"breadth": 9}, "breadth is 9; choose 0 to 8"),
    (baselines.Racer, {"state": "warm"}, "state 'warm'"),
    (Sampler, {"temperature": 0}, "must be above 0; use argmax"),
    (Sampler, {"top_p": 1.5}, "top_p"),
    (Sampler, {"min_p": -0.5}, "min_p"),
    (baselines.Speculative, {"gamma": 0}, "gamma is 0"),
    (baselines.Speculative, {"confidence": 1.5}, "confidence is 1.5; choose 0 to 1"),
    (baselines.Speculative, {"verification": "maybe"}, "'maybe' is not one of shared, rejection"),
    (baselines.Speculative, {"candidates": 2}, "candidates=2 needs verification=rejection"),
    (baselines.SuffixDecoding, {"max_tokens": 0}, "max_tokens is 0"),
    (baselines.SuffixDecoding, {"factor": -1}, "factor is -1"),
    (baselines.SuffixDecoding, {"least": 1.5}, "least is 1.5; choose 0 to 1"),
    (baselines.SuffixDecoding, {"gamma": 0}, "gamma is 0"),
    (baselines.SuffixDecoding, {"state": "warm"}, "state 'warm'"),
    (baselines.SuffixDecoding, {"depth": 1}, "depth is 1"),
    (baselines.SuffixDecoding, {"memory": 0}, "memory is 0"),
    (baselines.TokenRecycling, {"nodes": 81}, "nodes is 81; choose 1 to 80"),
    (baselines.TokenRecycling, {"state": "warm"}, "state 'warm'"),
]


@pytest.mark.parametrize(("make", "settings", "reason"), REFUSED)
def test_settings_out_of_range_are_refused(make, settings, reason):
    make(**BASE[make])
    with pytest.raises(ValueError, match=reason) as refusal:
        make(**{**BASE[make], **settings})
    assert "\n" not in str(refusal.value)
