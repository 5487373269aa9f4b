"""What a user of transformers gives to `generate`, and finds again after it."""

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
from ouroboros.baselines import Greedy, HFGenerate
from test_generate import Collected, Contains
from tiny import CONTEXT, llama, noisy, plain, prompt_of
from transformers import GenerationConfig, StoppingCriteria

from ouroboros import CachedModel, custom_generate, generate
from ouroboros.generate import Generated
from ouroboros.decoders import decoder_config, decoder_names, make_decoder, needs_draft
from ouroboros.engine import model as engine
from ouroboros.trace import DecodeTrace

IDS = torch.tensor([prompt_of(6)])
PROMPTS = [prompt_of(6), prompt_of(9, 1), prompt_of(3, 2)]


@pytest.fixture(scope="module")
def models():
    """An untouched model, a copy for us and its draft."""
    model = llama()
    return model, copy.deepcopy(model), noisy(model)


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


def test_one_prompt_with_a_mask_is_the_prompt(models):
    model, target, draft = models
    out = generate(target, IDS, attention_mask=torch.ones_like(IDS), draft=draft, max_new_tokens=9)
    assert out[0].tolist() == plain(model, IDS[0].tolist(), 9)


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


@pytest.mark.parametrize("name", ["speculative", "ouroboros_paper"])
def test_a_decoder_that_cannot_be_without_a_draft_says_so(models, name):
    with pytest.raises(ValueError, match="draft="):
        generate(models[1], IDS, decoder=name, max_new_tokens=5)


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
    from transformers import DynamicCache

    run = custom_generate(decoder="greedy")
    with pytest.raises(ValueError, match="past_key_values"):
        models[1].generate(
            IDS, max_new_tokens=3, past_key_values=DynamicCache(), custom_generate=run
        )


HUB = {"custom_generate": str(ROOT / "hub"), "trust_remote_code": True}


@pytest.fixture
def modules(tmp_path, monkeypatch) -> Path:
    """Where transformers copies a repository's code to."""
    from transformers import dynamic_module_utils

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
