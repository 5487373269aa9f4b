"""The library's door, and the same behind transformers' `custom_generate`."""

from __future__ import annotations

import copy

import pytest
import torch
from ouroboros.baselines import PromptLookup
from tiny import CONTEXT, llama, noisy, plain, prompt_of
from transformers import (
    LogitsProcessor,
    MaxTimeCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from ouroboros import CachedModel, custom_generate, generate

IDS = torch.tensor([prompt_of(6)])


class Collected(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


class Stateful(LogitsProcessor):
    """Counts its calls: rejected branches would count as well."""

    def __call__(self, input_ids, scores):
        raise AssertionError("never called")


class Parity(LogitsProcessor):
    """Of its own kind, but a function of text and row: an even sum of the text lifts id 5."""

    reads_text_only = True

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, 5] += 4.0 * (input_ids.sum(-1) % 2 == 0)
        return scores


class Contains(StoppingCriteria):
    """Stops after the first of some tokens, with no word to the model's own end."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.tokens)


@pytest.fixture(scope="module")
def models():
    """An untouched model, a copy for us and its draft."""
    model = llama()
    return model, copy.deepcopy(model), noisy(model)


def test_sampling_settings_without_sampling_are_warned_of(models):
    rule = {"decoder": "greedy", "max_new_tokens": 5}
    with pytest.warns(UserWarning, match=r"^temperature, top_k: no effect without do_sample=True"):
        cool = generate(models[0], IDS, temperature=0.5, top_k=3, **rule)
    assert cool.tolist() == generate(models[0], IDS, **rule).tolist()


@pytest.mark.parametrize("decoder", ["greedy", "lookahead", "ouroboros"])
@pytest.mark.parametrize("max_new", [1, 20])
def test_generate_is_plain_generation(models, decoder, max_new):
    model, target, draft = models
    out = generate(target, IDS, draft=draft, decoder=decoder, max_new_tokens=max_new)
    assert out.shape == (1, 6 + max_new) and out.dtype == torch.long
    assert out[0].tolist() == plain(model, IDS[0].tolist(), max_new)


def test_generate_takes_wrapped_models_a_drafter_and_settings(models):
    model, target, draft = models
    expected = plain(model, IDS[0].tolist(), 20)
    wrapped, small = CachedModel(target), CachedModel(draft)
    out = generate(wrapped, IDS, draft=small, max_new_tokens=20, gamma=3, decoder="ouroboros_paper")
    assert out[0].tolist() == expected and wrapped.engine.forwards < 20
    drafter = PromptLookup(max_ngram_size=2, num_tokens=3)
    assert generate(wrapped, IDS, decoder=drafter, max_new_tokens=20)[0].tolist() == expected


def test_generate_ends_where_the_model_or_the_caller_says(models):
    model, _, draft = models
    text = plain(model, IDS[0].tolist(), 30)
    ending = copy.deepcopy(model)
    for eos in (text[12], [text[12], text[9]]):
        expected = plain(model, IDS[0].tolist(), 30, eos_token_id=eos)
        assert len(expected) < 36
        ending.generation_config.eos_token_id = eos
        assert generate(ending, IDS, draft=draft, max_new_tokens=30)[0].tolist() == expected
        out = generate(copy.deepcopy(model), IDS, draft=draft, max_new_tokens=30, eos_token_id=eos)
        assert out[0].tolist() == expected
        streamer = Collected()
        out = ending.generate(
            IDS,
            max_new_tokens=30,
            custom_generate=custom_generate(draft=draft, streamer=streamer),
        )
        assert out[0].tolist() == expected
        assert streamer.values == [IDS[0].tolist(), *([t] for t in expected[6:])]


@pytest.mark.parametrize("decoder", ["greedy", "lookahead", "ouroboros"])
def test_generate_samples_alike_whatever_the_decoder(models, decoder):
    _, target, draft = models
    sampling = {"do_sample": True, "temperature": 1.3, "top_k": 8, "top_p": 0.95, "seed": 5}
    plainly = generate(target, IDS, decoder="greedy", max_new_tokens=25, **sampling)
    out = generate(target, IDS, draft=draft, decoder=decoder, max_new_tokens=25, **sampling)
    assert torch.equal(out, plainly)
    other = generate(target, IDS, decoder="greedy", max_new_tokens=25, **(sampling | {"seed": 6}))
    assert not torch.equal(out, other)


@pytest.mark.parametrize("decoder", ["greedy", "lookahead", "ouroboros"])
def test_custom_generate_is_plain_generation(models, decoder):
    model, target, draft = models
    run = custom_generate(draft=draft, decoder=decoder)
    for prompt in (prompt_of(6), prompt_of(20, 1), prompt_of(1)):
        for max_new in (1, 20, CONTEXT - len(prompt)):
            ids = torch.tensor([prompt])
            out = target.generate(ids, max_new_tokens=max_new, custom_generate=run)
            assert out[0].tolist() == plain(model, prompt, max_new)


def test_custom_generate_keeps_its_pool_between_prompts(models):
    _, target, draft = models
    calls = []
    small = CachedModel(draft)
    for state in ("cold", "task"):
        run = custom_generate(draft=small, pool_state=state)
        for _ in range(2):
            before = small.engine.forwards
            target.generate(IDS, max_new_tokens=40, custom_generate=run)
            calls.append(small.engine.forwards - before)
    assert calls[0] == calls[1] == calls[2] > calls[3]


def test_custom_generate_accepts_a_full_mask_and_a_config(models):
    model, target, draft = models
    config = copy.deepcopy(target.generation_config)
    config.max_new_tokens, config.eos_token_id = 15, [4, 9]
    run = custom_generate(draft=draft)
    mask = torch.ones_like(IDS)
    out = target.generate(IDS, generation_config=config, attention_mask=mask, custom_generate=run)
    assert out[0].tolist() == plain(model, IDS[0].tolist(), 15, eos_token_id=[4, 9])
    longest = target.generate(IDS, max_length=11, custom_generate=run)
    assert longest[0].tolist() == plain(model, IDS[0].tolist(), 5)


@pytest.mark.parametrize("decoder", ["greedy", "lookahead", "ouroboros"])
@pytest.mark.parametrize("door", ["generate", "custom_generate"])
def test_a_streamer_gets_every_token_exactly_once(models, decoder, door):
    model, target, draft = models
    streamer = Collected()
    if door == "generate":
        generate(target, IDS, draft=draft, decoder=decoder, max_new_tokens=30, streamer=streamer)
    else:
        run = custom_generate(draft=draft, decoder=decoder, streamer=streamer)
        target.generate(IDS, max_new_tokens=30, custom_generate=run)
    prompt = IDS[0].tolist()
    expected = plain(model, prompt, 30)
    assert streamer.values == [prompt, *([token] for token in expected[6:])]
    assert streamer.ended == 1


def test_stopping_criteria_cut_as_transformers_own(models):
    """Inside an accepted draft too, and the streamer gets nothing beyond the cut."""
    model, target, draft = models
    prompt = IDS[0].tolist()
    lengths = set()
    for tokens in [(3,), (4, 5), (6,), (7, 8), (9,), (10, 11)]:
        criteria = StoppingCriteriaList([Contains(*tokens)])
        expected = plain(model, prompt, 40, stopping_criteria=criteria)
        streamer = Collected()
        out = target.generate(
            IDS,
            max_new_tokens=40,
            stopping_criteria=criteria,
            custom_generate=custom_generate(draft=draft, streamer=streamer),
        )
        assert out[0].tolist() == expected
        assert [t for value in streamer.values for t in value] == expected and streamer.ended == 1
        lengths.add(len(expected))
    assert len(lengths) > 2


def test_time_runs_out_like_any_criterion(models):
    _, target, draft = models
    criteria = StoppingCriteriaList([MaxTimeCriteria(max_time=0.0)])
    out = target.generate(
        IDS,
        max_new_tokens=40,
        stopping_criteria=criteria,
        custom_generate=custom_generate(draft=draft),
    )
    assert out.shape == (1, 7)


def test_sampling_repeats_with_torchs_seed_or_ours(models):
    _, target, draft = models
    sampling = {"max_new_tokens": 25, "do_sample": True, "temperature": 1.5}

    def draw(global_seed: int, decoder: str, **options) -> list[int]:
        torch.manual_seed(global_seed)
        run = custom_generate(draft=draft, decoder=decoder, **options)
        return target.generate(IDS, custom_generate=run, **sampling)[0].tolist()

    assert draw(1, "ouroboros") == draw(1, "ouroboros") == draw(1, "greedy")
    assert draw(1, "ouroboros") != draw(2, "ouroboros")
    assert draw(1, "ouroboros", seed=3) == draw(2, "lookahead", seed=3)
    warped = sampling | {"top_k": 3, "top_p": 0.8, "min_p": 0.05, "temperature": 0.7}
    out = target.generate(IDS, custom_generate=custom_generate(draft=draft, seed=9), **warped)
    same = generate(
        target,
        IDS,
        decoder="greedy",
        max_new_tokens=25,
        do_sample=True,
        top_k=3,
        top_p=0.8,
        min_p=0.05,
        temperature=0.7,
        seed=9,
    )
    assert torch.equal(out, same)


PROCESSED = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.3, "do_sample": True, "temperature": 1.4, "top_k": 8},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 12, "eos_token_id": [4, 7, 9]},
    {"bad_words_ids": [[3], [4, 5]], "suppress_tokens": [7]},
    {"typical_p": 0.5, "do_sample": True},
    {"sequence_bias": {(6,): 3.0, (8, 9): -5.0}, "do_sample": True, "min_p": 0.1},
    {"exponential_decay_length_penalty": (3, 1.3), "eos_token_id": 5},
    {"logits_processor": [Parity()]},
    {"prefix_allowed_tokens_fn": lambda batch, ids: [(3, 5, 7), (4, 8)][batch]},
]


@pytest.mark.parametrize("options", PROCESSED, ids=lambda options: "-".join(options))
def test_processors_that_read_the_text_are_applied_to_each_nodes_own_path(models, options):
    model, target, draft = models
    plainly = {"max_new_tokens": 30, "custom_generate": custom_generate(decoder="greedy", seed=4)}
    lengths = set()
    for prompt in (prompt_of(6), prompt_of(9, 1) * 2):
        ids = torch.tensor([prompt])
        expected = target.generate(ids, **plainly, **options)
        if not options.get("do_sample"):
            assert expected[0].tolist() == plain(model, prompt, 30, **options)
        unprocessed = target.generate(ids, **plainly)
        assert not torch.equal(expected, unprocessed)
        for decoder in ("lookahead", "ouroboros"):
            run = custom_generate(draft=draft, decoder=decoder, seed=4)
            out = target.generate(ids, max_new_tokens=30, custom_generate=run, **options)
            assert torch.equal(out, expected)
            lengths.add(out.shape[-1])
    assert lengths


def test_a_processor_of_the_callers_own_counts_whatever_its_kind(models):
    """A warper given by the caller comes before temperature: with one id left, this is greedy."""
    model, target, draft = models
    options = {"do_sample": True, "temperature": 3.0, "logits_processor": [TopKLogitsWarper(1)]}
    run = custom_generate(draft=draft, seed=4)
    out = target.generate(IDS, max_new_tokens=20, custom_generate=run, **options)
    assert out[0].tolist() == plain(model, IDS[0].tolist(), 20)


def test_generate_takes_processors_and_a_narrower_draft(models):
    model, target, _ = models
    penalty = [RepetitionPenaltyLogitsProcessor(1.5), TopKLogitsWarper(6)]
    narrow = CachedModel(noisy(model))
    narrow.width = 9
    for sampling in ({}, {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "seed": 2}):
        options = {"max_new_tokens": 30, "logits_processor": penalty, **sampling}
        expected = generate(target, IDS, decoder="greedy", **options)
        assert torch.equal(generate(target, IDS, draft=narrow, **options), expected)
        assert not torch.equal(generate(target, IDS, max_new_tokens=30, decoder="greedy"), expected)


REFUSED = {
    "num_beams=3": {"num_beams": 3},
    "num_return_sequences=2": {"num_return_sequences": 2, "do_sample": True},
    "WatermarkLogitsProcessor": {"watermarking_config": {"bias": 2.0}},
    "Stateful": {"logits_processor": [Stateful()]},
    "output_scores=True": {"output_scores": True},
    "padded attention_mask": {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]])},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(models, name):
    _, target, draft = models
    with pytest.raises(ValueError, match=name):
        target.generate(
            IDS, max_new_tokens=5, custom_generate=custom_generate(draft=draft), **REFUSED[name]
        )


def test_a_callable_refuses_a_batch(models):
    _, target, draft = models
    batch = torch.cat([IDS, IDS])
    with pytest.raises(ValueError, match=r"shape \[2, 6\]; .* ouroboros.generate takes them"):
        target.generate(batch, max_new_tokens=5, custom_generate=custom_generate(draft=draft))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"decoder": "ouroboros_paper"}, "needs draft="),
        ({"decoder": "speculative"}, "needs draft="),
        ({"decoder": "medusa"}, "no decoder 'medusa'; choose from greedy, lookahead, ouroboros"),
        (
            {"decoder": PromptLookup(max_ngram_size=2, num_tokens=3), "gamma": 4},
            "gamma: give these to the decoder",
        ),
        ({"decoder": "greedy", "do_sample": True, "temperature": 0.0}, "must be above 0"),
        ({"decoder": "greedy", "max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": "8"}, "max_new_tokens='8' is text: give a number"),
        ({"draft": "a/folder"}, "draft='a/folder' is a str, not a model: load it"),
        ({"max_new_token": 8}, "did you mean max_new_tokens"),
        ({"max_node": 8}, "did you mean max_nodes"),
    ],
)
def test_impossible_arguments_are_refused(models, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        generate(models[1], IDS, **{"max_new_tokens": 5, **arguments})


def test_a_models_name_is_no_model(models):
    with pytest.raises(ValueError, match="model='a/folder' is a str, not a model: load it"):
        generate("a/folder", IDS)


@pytest.mark.parametrize("strange", [-1, 10_000])
def test_ids_that_the_model_does_not_know_are_refused(models, strange):
    _, target, draft = models
    ids = torch.tensor([[1, strange, 2]])
    reason = f"input_ids holds {strange}, the model knows ids 0 to"
    with pytest.raises(ValueError, match=reason):
        generate(target, ids, draft=draft, max_new_tokens=5)
    with pytest.raises(ValueError, match=reason):
        target.generate(ids, max_new_tokens=5, custom_generate=custom_generate(draft=draft))


def test_a_setting_that_no_decoder_knows_is_refused(models):
    for decoder in ("greedy", "lookahead", "ouroboros"):
        with pytest.raises((TypeError, ValueError), match="gama"):
            generate(models[1], IDS, draft=models[2], decoder=decoder, max_new_tokens=5, gama=4)
