"""`generate`, `custom_generate` and the folder for the Hub: the tokens of standard decoding."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from bench_models import byte_tokenizer, tiny_llama
from composing import ROOT
from ouroboros.baselines import Greedy, HFGenerate, PromptLookup
from tiny import CONTEXT, llama, noisy, plain, prompt_of
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    MaxTimeCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
    dynamic_module_utils,
)
from transformers.generation.streamers import BaseStreamer

from ouroboros import CachedModel, custom_generate, generate
from ouroboros.decoders import decoder_config, decoder_names, make_decoder, needs_draft
from ouroboros.engine import model as engine
from ouroboros.generate import Generated
from ouroboros.trace import DecodeTrace

IDS = torch.tensor([prompt_of(6)])
PROMPTS = [prompt_of(6), prompt_of(9, 1), prompt_of(3, 2)]


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
    wrapped, small = (CachedModel(copy.deepcopy(m)) for m in (target, draft))
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
    small = CachedModel(copy.deepcopy(draft))
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
        ({"gama": 4}, "no option 'gama'"),
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


def padded(prompts: list[list[int]], pad: int = 0) -> dict[str, torch.Tensor]:
    """A tokenizer's batch, padded on the left."""
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(p)) + p for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def transformers_own(model, **options) -> list[list[int]]:
    return copy.deepcopy(model).generate(**{"do_sample": False, **options}).tolist()


BATCHES = [
    {"max_new_tokens": 20},
    {"max_length": 20},
    {"max_new_tokens": 30, "eos_token_id": [4, 9]},
    {"max_new_tokens": 30, "eos_token_id": [4, 9], "pad_token_id": 11},
    {"max_new_tokens": 20, "repetition_penalty": 1.4},
    {"max_length": 30, "min_length": 22, "eos_token_id": 4},
    {"max_new_tokens": 30, "stopping_criteria": [Contains(5, 8)], "eos_token_id": 12},
    {"max_new_tokens": 20, "prefix_allowed_tokens_fn": lambda row, ids: [3 + row, 5, 7]},
]


@pytest.mark.parametrize("options", BATCHES, ids=lambda options: "-".join(options))
def test_a_padded_batch_is_transformers_own(models, options):
    model, target, draft = models
    batch = padded(PROMPTS)
    out = generate(target, **batch, draft=draft, **options)
    assert out.tolist() == transformers_own(model, **batch, **options)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]])}, "on its left only"),
        ({"attention_mask": torch.tensor([[1, 0, 1, 1, 1, 1]])}, "on its left only"),
        ({"attention_mask": torch.zeros_like(IDS)}, "not be empty"),
        ({"attention_mask": torch.ones(1, 3)}, r"shape \[1, 3\], input_ids \[1, 6\]"),
        ({"input_ids": IDS[0]}, r"shape \[6\]; \[rows, length\]"),
        ({"input_ids": [1, 2]}, "is a list: give the tokenizer's tensor"),
        ({"input_ids": padded(PROMPTS)["input_ids"]}, "give the tokenizer's attention_mask"),
        ({"input_ids": torch.cat([IDS, IDS]), "streamer": Collected()}, "a streamer takes one row"),
    ],
)
def test_what_is_no_left_padded_batch_is_refused(models, batch, reason):
    with pytest.raises(ValueError, match=reason):
        generate(models[1], **{"input_ids": IDS, **batch}, decoder="greedy", max_new_tokens=3)


def test_a_batch_samples_each_row_with_noise_of_its_own(models):
    _, target, draft = models
    sampling = {"do_sample": True, "temperature": 2.0, "max_new_tokens": 20, "draft": draft}
    twice = torch.cat([IDS, IDS])
    out = generate(target, twice, seed=4, **sampling)
    assert out[0].tolist() != out[1].tolist()
    assert torch.equal(out[1:], generate(target, IDS, seed=5, **sampling))
    torch.manual_seed(3)
    first = generate(target, IDS, **sampling)
    torch.manual_seed(3)
    assert torch.equal(generate(target, IDS, **sampling), first)


def test_a_generation_config_is_honoured_and_left_alone(models):
    model, target, draft = models
    config = GenerationConfig(max_new_tokens=25, eos_token_id=[4, 9], repetition_penalty=1.3)
    before = config.to_dict()
    out = generate(target, IDS, draft=draft, generation_config=config)
    assert out.tolist() == transformers_own(model, inputs=IDS, generation_config=config)
    assert config.to_dict() == before
    assert generate(target, IDS, draft=draft).shape[-1] == 26  # as transformers: 20 new tokens


CONFIGURED = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "suppress_tokens": [7]}


@pytest.mark.parametrize("door", ["generate", "custom_generate"])
def test_the_models_own_configuration_is_honoured_whole(models, door):
    model, draft = copy.deepcopy(models[0]), models[2]
    for name, value in CONFIGURED.items():
        setattr(model.generation_config, name, value)
    expected = plain(model, IDS[0].tolist(), 30)
    assert expected != plain(models[0], IDS[0].tolist(), 30)
    if door == "generate":
        out = generate(model, IDS, draft=draft, max_new_tokens=30)
    else:
        out = model.generate(IDS, max_new_tokens=30, custom_generate=custom_generate(draft=draft))
    assert out[0].tolist() == expected


@pytest.mark.parametrize("mode", ["greedy", "assisted", "prompt_lookup"])
def test_a_peer_runs_under_the_choice_it_is_given_and_no_other(models, mode):
    """A run says how tokens are chosen; what the model's own config adds would look like a BUG."""
    model = copy.deepcopy(models[0])
    for name, value in {**CONFIGURED, "do_sample": True, "temperature": 3.0}.items():
        setattr(model.generation_config, name, value)
    before = model.generation_config.to_dict()
    settings = {"prompt_lookup_num_tokens": 4} if mode == "prompt_lookup" else {}
    peer = HFGenerate(mode, draft=CachedModel(copy.deepcopy(models[2])), **settings)
    trace = peer.run(CachedModel(model), IDS[0].tolist(), max_new=30)
    assert trace.tokens == plain(models[0], IDS[0].tolist(), 30)
    assert model.generation_config.to_dict() == before


def test_stop_strings_end_where_transformers_ends(tmp_path):
    model, tokenizer = tiny_llama(0), byte_tokenizer()
    ids = tokenizer("def f(a):", return_tensors="pt")["input_ids"]
    text = tokenizer.decode(generate(model, ids, decoder="lookahead", max_new_tokens=40)[0])
    options = {"stop_strings": [text[25:27], text[30:32]], "tokenizer": tokenizer}
    expected = transformers_own(model, inputs=ids, max_new_tokens=40, **options)
    assert len(expected[0]) < len(ids[0]) + 40
    rule = {"decoder": "lookahead", "max_new_tokens": 40}
    assert generate(model, ids, **rule, **options).tolist() == expected
    model.generation_config.stop_strings = options["stop_strings"]
    assert generate(model, ids, **rule, tokenizer=tokenizer).tolist() == expected
    assert model.generation_config.stop_strings == options["stop_strings"]
    with pytest.raises(ValueError, match=r"stop_strings=.* need tokenizer="):
        generate(model, ids, **rule)


class Long(StoppingCriteria):
    """Holds from a length on."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([input_ids.shape[-1] >= 15])


@pytest.mark.parametrize("door", ["generate", "custom_generate"])
def test_a_dictionary_holds_the_sequences_and_what_it_took(models, door):
    _, target, draft = models
    options = {"max_new_tokens": 30, "return_dict_in_generate": True}
    if door == "generate":
        found = generate(target, **padded(PROMPTS), draft=draft, **options)
        ids = padded(PROMPTS)["input_ids"]
    else:
        found = target.generate(IDS, custom_generate=custom_generate(draft=draft), **options)
        ids = IDS
    assert isinstance(found, Generated) and found["sequences"] is found.sequences
    assert found.sequences.shape == (len(ids), ids.shape[-1] + 30)
    assert all(isinstance(trace, DecodeTrace) for trace in found.traces)
    assert found.calls == sum(len(trace.steps) for trace in found.traces)
    assert found.calls + found.accepted == 30 * len(ids) and found.draft_calls
    short = generate(target, IDS, draft=draft, stopping_criteria=[Long()], **options)
    assert sum(s.new for s in short.traces[0].steps) == 9 == short.sequences.shape[-1] - 6


@pytest.mark.parametrize("name", decoder_names())
def test_every_decoder_is_had_by_name(models, name):
    model, target, draft = models
    small = draft if needs_draft(name) else None
    out = generate(target, IDS, draft=small, decoder=name, max_new_tokens=40)
    assert out[0].tolist() == plain(model, IDS[0].tolist(), 40)


def test_settings_of_a_named_decoder_replace_tuned_ones():
    tuned = decoder_config("speculative")
    made = make_decoder("speculative", CachedModel(llama()), gamma=1)
    assert made.gamma == 1 < tuned["gamma"] and made.confidence == tuned["confidence"]
    assert isinstance(make_decoder("greedy"), Greedy)
    warm, cold = map(decoder_config, ("ouroboros_paper_warm", "ouroboros_paper"))
    assert warm == {**cold, "pool_state": "task"}  # upon the config it is built on
    with pytest.raises(
        ValueError, match=r"'gama' \(did you mean gamma\?\); choose from draft, gamma"
    ):
        make_decoder("speculative", CachedModel(llama()), gama=2)


@pytest.fixture
def examined(monkeypatch) -> list:
    """The models that were examined."""
    found = []
    real = engine.check_tree_support
    monkeypatch.setattr(
        engine, "check_tree_support", lambda model: found.append(model) or real(model)
    )
    return found


def test_a_model_is_examined_once_and_freed_with_its_owner(models, examined):
    model, draft = copy.deepcopy(models[0]), copy.deepcopy(models[2])
    rule = {"draft": draft, "max_new_tokens": 8}
    first = generate(model, IDS, **rule)
    assert torch.equal(generate(model, IDS, **rule), first) and len(examined) == 2
    own = custom_generate(draft=draft)
    assert torch.equal(model.generate(IDS, max_new_tokens=8, custom_generate=own), first)
    assert len(examined) == 2
    with torch.no_grad():  # what was cached of the prompt is no longer true
        for weight in model.parameters():
            weight.neg_()
    assert generate(model, IDS, **rule)[0].tolist() == plain(model, IDS[0].tolist(), 8)
    model.float()
    generate(model, IDS, **rule)
    assert examined[2:] == [model]
    copied, gone = copy.deepcopy(model), weakref.ref(model)
    examined.clear()
    generate(copied, IDS, **rule)
    assert examined == [copied]
    examined.clear()
    del model, own
    gc.collect()
    assert gone() is None


def test_a_model_may_draft_for_itself(models, examined):
    model = copy.deepcopy(models[0])
    out = generate(model, IDS, draft=model, decoder="speculative", max_new_tokens=20)
    assert out[0].tolist() == plain(models[0], IDS[0].tolist(), 20)


def test_attention_and_mode_are_put_back(models):
    model, draft = copy.deepcopy(models[0]), copy.deepcopy(models[2])
    model.train()
    assert model.config._attn_implementation == "sdpa"
    for _ in range(2):
        generate(model, IDS, draft=draft, max_new_tokens=5)
        assert model.config._attn_implementation == draft.config._attn_implementation == "sdpa"
        assert model.training and not draft.training
    model.set_attn_implementation("eager")
    generate(model, IDS, draft=draft, max_new_tokens=5)
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="needs draft="):
        generate(model, IDS, decoder="speculative", max_new_tokens=5)
    assert model.config._attn_implementation == "eager"


def test_threads_on_one_model_wait_for_each_other(models):
    model, draft = copy.deepcopy(models[0]), copy.deepcopy(models[2])
    texts: dict[int, list[int]] = {}

    def work(one: int) -> None:
        ids = torch.tensor([PROMPTS[one % 3]])
        pair = (model, draft) if one % 2 else (draft, model)
        texts[one] = generate(pair[0], ids, draft=pair[1], max_new_tokens=30)[0].tolist()

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for one in range(6):
        assert texts[one] == plain(models[0] if one % 2 else models[2], PROMPTS[one % 3], 30)


IGNORED_INPUTS = {
    "pixel_values": torch.zeros(1, 3, 2, 2),
    "position_ids": torch.tensor([[3, 4, 5, 6, 7, 8]]),
    "inputs_embeds": torch.zeros(1, 6, 16),
    "token_type_ids": torch.ones_like(IDS),
}


@pytest.mark.parametrize("name", IGNORED_INPUTS)
def test_an_input_that_would_be_ignored_is_refused(models, name):
    _, target, _ = models
    run = custom_generate(decoder="greedy")
    with pytest.raises(ValueError, match=name):
        run(target, IDS, **{name: IGNORED_INPUTS[name]})
    with pytest.raises(ValueError, match=name):
        generate(target, IDS, decoder="greedy", **{name: IGNORED_INPUTS[name]})


def test_a_cache_of_the_callers_is_refused(models):
    run = custom_generate(decoder="greedy")
    with pytest.raises(ValueError, match="past_key_values"):
        models[1].generate(
            IDS, max_new_tokens=3, past_key_values=DynamicCache(), custom_generate=run
        )


HUB = {"custom_generate": str(ROOT / "hub"), "trust_remote_code": True}


@pytest.fixture
def modules(tmp_path, monkeypatch) -> Path:
    """Where transformers copies a repository's code to."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_hubs_folder_works_through_transformers_itself(models, modules):
    model, target, draft = models
    expected, streamer = plain(model, IDS[0].tolist(), 25), Collected()
    options = {"max_new_tokens": 25, "streamer": streamer, **HUB}
    mask = torch.ones_like(IDS)
    out = target.generate(input_ids=IDS, attention_mask=mask, assistant_model=draft, **options)
    assert out[0].tolist() == expected
    assert [t for value in streamer.values for t in value] == expected and streamer.ended == 1
    found = target.generate(
        IDS, max_new_tokens=25, decoder="lookahead", return_dict_in_generate=True, **HUB
    )
    assert found.sequences[0].tolist() == expected and found.calls < 25
    batch = padded(PROMPTS)
    out = target.generate(**batch, assistant_model=draft, max_new_tokens=9, **HUB)
    assert out.tolist() == transformers_own(model, **batch, max_new_tokens=9)
    with pytest.raises(ValueError, match="num_beams=3"):
        target.generate(IDS, num_beams=3, **HUB)


def test_the_end_of_the_context_is_the_end(models):
    _, target, draft = models
    out = generate(target, IDS, draft=draft, max_new_tokens=2 * CONTEXT)
    assert out.shape[-1] == CONTEXT + 1
