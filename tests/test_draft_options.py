"""Other harnesses load the draft with options of its own; no harness is needed to test it."""

import pytest
import torch
from bench_models import tiny_llama, tiny_pair

from ouroboros.lm_eval import decode_with, pop_settings


def test_options_that_begin_with_draft_load_the_draft(tmp_path):
    target, draft = tiny_pair()
    for part in (draft.model, draft.tokenizer):
        part.save_pretrained(tmp_path / "small")
    options = {"draft_subfolder": "small", "draft_dtype": "float64", "draft_head": 40}
    options |= {"draft_nodes": 5, "dtype": "x"}
    settings, loading = pop_settings("ouroboros", options)
    assert options == {"dtype": "x"} and settings == {"draft_nodes": 5}
    made = decode_with(target.model, str(tmp_path), "ouroboros", settings, loading)
    assert made.draft.dtype == torch.float64 and len(made.draft.head.ids) - 1 == 40
    assert made.settings == {"draft_nodes": 5}
    plain = decode_with(target.model, str(tmp_path / "small"), "ouroboros", {}, {})
    assert plain.draft.dtype == torch.float32


@pytest.mark.parametrize(
    ("draft", "reason"), [(None, "missing"), (tiny_llama(1), "loaded already")]
)
def test_options_of_no_effect_are_refused(draft, reason):
    with pytest.raises(ValueError, match=f"draft_revision has no effect: the draft is {reason}"):
        decode_with(tiny_llama(0), draft, "ouroboros", {}, {"revision": "abc"})
