"""Generation options x batches x architectures x decoders against transformers' own generation.

The greedy text of every draw is transformers' own; the sampled text is that of standard decoding
with the same noise, which tests/core/test_select.py compares with transformers' processors. `make
test` takes a few of the 500 draws of `make test-all`.
"""

import copy
from contextlib import suppress
from functools import cache
from itertools import count

import pytest
import torch
from architectures import SUPPORTED, config_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny import build, mostly_slow, noisy, prompt_of
from transformers import PreTrainedModel

from ouroboros import CachedModel, custom_generate, generate
from ouroboros.decoder_factory import decoder_names, decoder_settings, needs_draft

DRAWS = [(torch.float64, 250), (torch.float32, 250), (torch.float64, 25)]
NEW = 24
TOKENS = st.integers(3, 12)
OPTIONS = {
    "eos_token_id": st.lists(TOKENS, min_size=1, max_size=3, unique=True),
    "pad_token_id": st.sampled_from([0, 11]),
    "repetition_penalty": st.sampled_from([0.8, 1.2, 1.7]),
    "encoder_repetition_penalty": st.sampled_from([0.7, 1.5]),
    "no_repeat_ngram_size": st.integers(1, 3),
    "encoder_no_repeat_ngram_size": st.integers(2, 3),
    "bad_words_ids": st.lists(st.lists(TOKENS, min_size=1, max_size=2), min_size=1, max_size=2),
    "suppress_tokens": st.lists(st.integers(3, 9), min_size=1, max_size=4, unique=True),
    "begin_suppress_tokens": st.lists(TOKENS, min_size=1, max_size=4, unique=True),
    "sequence_bias": st.just({(6,): 3.0, (8, 9): -5.0}),
    "min_new_tokens": st.integers(1, 12),
    "min_length": st.integers(1, 20),
    "forced_eos_token_id": st.integers(10, 12),  # transformers refuses a suppressed one
    "remove_invalid_values": st.booleans(),
    "renormalize_logits": st.booleans(),
    "prefix_allowed_tokens_fn": st.just(lambda row, ids: [3 + row, 5, 7, 8, 9]),
    "stop_at": st.lists(TOKENS, min_size=1, max_size=2),
}
SAMPLING = {
    "temperature": st.sampled_from([0.4, 0.9, 2.0]),
    "top_k": st.integers(1, 13),
    "top_p": st.sampled_from([0.3, 0.9]),
    "min_p": st.sampled_from([0.05, 0.3]),
    "typical_p": st.sampled_from([0.4, 0.9]),
    "epsilon_cutoff": st.sampled_from([0.01, 0.1]),
    "eta_cutoff": st.sampled_from([0.01, 0.1]),
}
CONTEXTS = st.sampled_from([None, 1, 5, 256])
SHAPES = {
    "max_nodes": st.sampled_from([1, 5, 12]),
    "gamma": st.integers(1, 5),
    "adapt": st.booleans(),
}


@cache
def pair(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedModel]:
    """A model for transformers, one for us and its draft."""
    model = build(config_of(name, SUPPORTED[name]), seed=1, dtype=dtype)
    return model, copy.deepcopy(model), noisy(model)


def some(draw, options: dict, most: int) -> dict:
    """Draw a few of some options."""
    names = draw(st.lists(st.sampled_from(sorted(options)), max_size=most, unique=True))
    return {name: draw(options[name]) for name in names}


def stopping(tokens: list[int]):
    """A criterion that holds after some tokens."""
    return lambda ids, scores, **_: torch.isin(ids[:, -1], torch.tensor(tokens))


def interrupting(at: int):
    """A criterion that interrupts the call when it is asked for the `at`-th time."""
    asked = count(1)

    def interrupt(ids, scores, **_) -> bool:
        if next(asked) == at:
            raise KeyboardInterrupt
        return False

    return interrupt


@pytest.mark.parametrize(("dtype", "draws"), mostly_slow(DRAWS, quick=DRAWS[2:]))
def test_no_option_architecture_or_decoder_changes_a_token(dtype, draws):
    @settings(
        max_examples=draws,
        phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def compared(data) -> None:
        compare(dtype, data.draw)

    compared()


def compare(dtype: torch.dtype, draw) -> None:
    """Compare one draw with transformers' text, by both entry points, after an interruption too."""
    names = set(SUPPORTED)
    if dtype == torch.float64:  # transformers' eager attention makes NaN of float64 padding
        names -= {"gemma2", "vaultgemma"}
    model, target, draft = pair(draw(st.sampled_from(sorted(names))), dtype)
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    prompts = [prompt_of(length, draw(st.integers(0, 99))) for length in lengths]
    width = max(lengths)
    mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    options = {"max_new_tokens": draw(st.integers(1, NEW)), **some(draw, OPTIONS, 4)}
    if stops := options.pop("stop_at", None):
        options["stopping_criteria"] = [stopping(stops)]
        options.setdefault("eos_token_id", 12)  # or transformers does not pad the rows that ended
    name = draw(st.sampled_from(decoder_names()))
    own = {key: draw(value) for key, value in SHAPES.items() if key in decoder_settings(name)}
    if draw(st.booleans()) or (needs_draft(name) and name != "ouroboros"):
        own["draft"] = draft
        if short := draw(st.sampled_from([None, None, 8, 30])):  # its own context gets full
            own["draft"] = CachedModel(draft, max_len=short)
            own["draft"].prefill_limit = draw(CONTEXTS)
    own |= {"batch_size": draw(st.sampled_from([None, 1, 2])), "draft_context": draw(CONTEXTS)}
    batch = {"input_ids": ids, "attention_mask": mask, **options}
    if sampled := draw(st.booleans()):
        batch |= {"do_sample": True, **some(draw, SAMPLING, 3)}
        try:
            expected = generate(target, decoder="greedy", seed=7, **batch)
        except ValueError as error:  # every id is excluded
            assert "no distribution" in str(error) or "Categorical" in str(error)
            return
        assert generate(target, decoder=name, seed=7, **own, **batch).tolist() == expected.tolist()
    else:
        expected = model.generate(**batch, do_sample=False)
        assert generate(target, decoder=name, **own, **batch).tolist() == expected.tolist()
    door = custom_generate(decoder=name, seed=7 if sampled else None, **own)
    criteria = [*batch.get("stopping_criteria", ()), interrupting(draw(st.integers(1, 12)))]
    with suppress(KeyboardInterrupt):  # leaves nothing behind in models and decoders
        target.generate(**{**batch, "stopping_criteria": criteria}, custom_generate=door)
    assert target.generate(**batch, custom_generate=door).tolist() == expected.tolist()
    found = target.generate(**batch, custom_generate=door, return_dict_in_generate=True)
    assert found.sequences.tolist() == expected.tolist()  # decoders and wrappers are used again
    for trace in found.traces:
        assert sum(step.new for step in trace.steps) == len(trace.new_tokens)
        assert all(0 <= step.accepted <= step.drafted for step in trace.steps)
