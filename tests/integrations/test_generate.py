"""`generate`, `custom_generate` and the folder for the Hub: the tokens of standard decoding."""

import copy
import itertools

import pytest
import torch
from bench_models import byte_tokenizer, tiny_llama
from composing import ROOT
from ouroboros.baselines import PromptLookup
from tiny import CONTEXT, llama, plain, prompt_of
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    MaxTimeCriteria,
    StoppingCriteria,
    StopStringCriteria,
    dynamic_module_utils,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from ouroboros import CachedModel, custom_generate, generate
from ouroboros.decoder_factory import decoder_config, decoder_names, make_decoder, needs_draft
from ouroboros.integrations.generate import Generated

PROMPTS = [prompt_of(6), prompt_of(9, 1), prompt_of(3, 2)]
IDS = torch.tensor(PROMPTS[:1])
DECODERS = ("greedy", "lookahead", "ouroboros")


class Collected(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1

    @property
    def tokens(self) -> list[int]:
        return [token for value in self.values for token in value]


class Stateful(LogitsProcessor):
    def __call__(self, input_ids, scores):
        raise AssertionError("never called")


class Parity(LogitsProcessor):
    """A function of text and row: an even sum of the text lifts id 5."""

    reads_text_only = True

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, 5] += 4.0 * (input_ids.sum(-1) % 2 == 0)
        return scores


class FirstRow(LogitsProcessor):
    """Written for one sequence: lifts an id that the last token of the first row selects."""

    reads_text_only = True

    def __call__(self, input_ids, scores):
        scores[:, (3 * input_ids[0, -1] + 1) % 13] += 3.0
        return scores


def after(*tokens: int):
    """A stopping criterion that holds after some tokens."""
    return lambda ids, scores, **_: torch.isin(ids[:, -1], torch.tensor(tokens))


def run(door: str, model, ids, *, streamer=None, seed=None, draft=None, decoder="ouroboros", **o):
    """Generate by `generate` or by transformers with a callable."""
    own = {"draft": draft, "decoder": decoder, "seed": seed, "streamer": streamer}
    own |= {"batch_size": o.pop("batch_size")} if "batch_size" in o else {}
    if door == "generate":
        return generate(model, ids, **own, **o)
    return model.generate(ids, custom_generate=custom_generate(**own), **o)


def hf(model, ids=IDS, **options) -> list[list[int]]:
    """What transformers' own greedy loop returns, on a copy of the model."""
    return copy.deepcopy(model).generate(ids, **{"do_sample": False, **options}).tolist()


both_doors = pytest.mark.parametrize("door", ["generate", "custom_generate"])


@pytest.fixture(scope="module")
def texts(models):
    """transformers' own text up to the context's end after each of three prompts."""
    prompts = prompt_of(6), prompt_of(20, 1), prompt_of(1)
    return [(one, plain(models[0], one, CONTEXT - len(one))) for one in prompts]


@both_doors
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_text_is_standard_generations_and_a_streamer_gets_each_token_once(
    models, texts, decoder, door
):
    _, target, draft = models
    for prompt, text in texts:
        for max_new in (1, 20, CONTEXT - len(prompt)):
            streamer, ids = Collected(), torch.tensor([prompt])
            options = {"draft": draft, "decoder": decoder, "max_new_tokens": max_new}
            out = run(door, target, ids, streamer=streamer, **options)
            assert out.tolist() == [text[: len(prompt) + max_new]] and out.dtype == torch.long
            assert streamer.values == [prompt, *([t] for t in out[0, len(prompt) :].tolist())]
            assert streamer.ended == 1
    out = generate(target, IDS, draft=draft, decoder=decoder, max_new_tokens=2 * CONTEXT)
    assert out.shape[-1] == CONTEXT + 1


@pytest.mark.parametrize("name", decoder_names())
def test_every_decoder_is_had_by_name(models, texts, name):
    _, target, draft = models
    small = draft if needs_draft(name) else None
    out = generate(target, IDS, draft=small, decoder=name, max_new_tokens=40)
    assert out[0].tolist() == texts[0][1][: IDS.shape[-1] + 40]


def test_generate_takes_wrapped_models_a_drafter_and_settings(models):
    model, target, draft = models
    expected = plain(model, IDS[0].tolist(), 20)
    wrapped, small = (CachedModel(copy.deepcopy(m)) for m in (target, draft))
    out = generate(wrapped, IDS, draft=small, max_new_tokens=20, gamma=3, decoder="ouroboros_paper")
    assert out[0].tolist() == expected and wrapped.engine.forwards < 20
    drafter = PromptLookup(max_ngram_size=2, num_tokens=3)
    assert generate(wrapped, IDS, decoder=drafter, max_new_tokens=20)[0].tolist() == expected
    itself = generate(target, IDS, draft=target, decoder="speculative", max_new_tokens=20)
    assert itself[0].tolist() == expected
    rule = {"max_new_tokens": 8, "return_dict_in_generate": True}
    assert generate(target, IDS, assistant_model=draft, **rule).draft_calls
    with pytest.raises(ValueError, match="draft and assistant_model are the same option"):
        generate(target, IDS, draft=draft, assistant_model=draft)
    with pytest.raises(ValueError, match="model='a/folder' is a str, not a model: give one"):
        generate("a/folder", IDS)


def test_custom_generate_keeps_its_pool_between_prompts(models):
    _, target, draft = models
    calls = []
    small = CachedModel(copy.deepcopy(draft))
    for state in ("cold", "task"):
        own = custom_generate(draft=small, pool_state=state, adapt=False)
        for _ in range(2):
            before = small.engine.forwards
            target.generate(IDS, max_new_tokens=40, custom_generate=own)
            calls.append(small.engine.forwards - before)
    assert calls[0] == calls[1] == calls[2] > calls[3]


@both_doors
def test_ends_of_the_model_the_config_and_the_caller_are_transformers_own(models, door):
    """Inside an accepted draft too, and the streamer gets nothing beyond the end."""
    model, _, draft = models
    text = plain(model, IDS[0].tolist(), 40)
    lengths = set()
    options = [{"eos_token_id": [text[12], text[9]]}, {"max_length": 11}]
    options += [{"stopping_criteria": [after(*t)]} for t in [(3,), (4, 5), (6,), (7, 8), (9,)]]
    options += [{"stopping_criteria": [MaxTimeCriteria(max_time=0.0)]}]
    given = MaxLengthCriteria(19), MaxLengthCriteria(3), EosTokenCriteria(text[12])
    options += [{"stopping_criteria": [criterion]} for criterion in given]
    options += [{"stopping_criteria": [given[2]], "eos_token_id": text[9]}]
    options += [{"generation_config": GenerationConfig(max_new_tokens=25, eos_token_id=[4, 9])}]
    for own in options:
        if "max_length" not in own and "generation_config" not in own:
            own = {**own, "max_new_tokens": 40}
        expected, streamer = hf(model, **own), Collected()
        before = copy.deepcopy(own.get("generation_config"))
        assert run(door, model, IDS, draft=draft, streamer=streamer, **own).tolist() == expected
        assert streamer.tokens == expected[0] and streamer.ended == 1
        assert own.get("generation_config") == before
        lengths.add(len(expected[0]))
    assert len(lengths) > 4 and min(lengths) == 7
    ending = copy.deepcopy(model)
    ending.generation_config.eos_token_id = text[12]
    expected = plain(model, IDS[0].tolist(), 30, eos_token_id=text[12])
    assert run(door, ending, IDS, draft=draft, max_new_tokens=30)[0].tolist() == expected


def test_stop_strings_end_where_transformers_ends():
    model, tokenizer = tiny_llama(0), byte_tokenizer()
    ids = tokenizer("def f(a):", return_tensors="pt")["input_ids"]
    rule = {"decoder": "lookahead", "max_new_tokens": 40}
    text = tokenizer.decode(generate(model, ids, **rule)[0])
    for strings in (text[25:27], [text[8:10]], [text[25:27], text[30:32]]):  # [8:10]: from ":" on
        options = {"stop_strings": strings, "tokenizer": tokenizer}
        expected = hf(model, ids, max_new_tokens=40, **options)
        assert len(expected[0]) < len(ids[0]) + 40
        assert generate(model, ids, **rule, **options).tolist() == expected
    criteria = [StopStringCriteria(tokenizer, options["stop_strings"])]
    found = run("custom_generate", model, ids, **rule, stopping_criteria=criteria)
    assert found.tolist() == expected  # transformers drops `tokenizer` for a callable
    model.generation_config.stop_strings = options["stop_strings"]
    assert generate(model, ids, **rule, tokenizer=tokenizer).tolist() == expected
    assert model.generation_config.stop_strings == options["stop_strings"]
    with pytest.raises(ValueError, match=r"stop_strings=.* need tokenizer="):
        generate(model, ids, **rule)


SAMPLING = {"do_sample": True, "temperature": 1.5, "max_new_tokens": 25}


def test_without_a_seed_torchs_generator_draws_one(models):
    _, target, draft = models
    drawn = []
    for global_seed in (1, 1, 2):
        torch.manual_seed(global_seed)
        drawn.append(generate(target, IDS, draft=draft, **SAMPLING).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


PROCESSED = [
    {"exponential_decay_length_penalty": (3, 1.3), "eos_token_id": 5},
    {"logits_processor": [Parity()]},
    {"logits_processor": [FirstRow()]},
    {"prefix_allowed_tokens_fn": lambda batch, ids: [(3, 5, 7), (4, 8)][batch]},
]


@pytest.mark.parametrize("options", PROCESSED, ids=lambda options: "-".join(options))
def test_processors_that_read_the_text_are_applied_to_each_nodes_own_path(models, options):
    model, target, draft = models
    rule = {"max_new_tokens": 30, "seed": 4}
    for prompt in (prompt_of(6), prompt_of(9, 1) * 2):
        ids = torch.tensor([prompt])
        expected = run("custom_generate", target, ids, decoder="greedy", **rule, **options)
        assert expected[0].tolist() == plain(model, prompt, 30, **options)
        assert not torch.equal(expected, generate(target, ids, decoder="greedy", **rule))
        for door, decoder in (("generate", "lookahead"), ("custom_generate", "ouroboros")):
            out = run(door, target, ids, draft=draft, decoder=decoder, **rule, **options)
            assert torch.equal(out, expected)


@both_doors
@pytest.mark.parametrize("decoder", ["greedy", "lookahead", "ouroboros_paper", "ouroboros"])
@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "seed": 3, "suppress_tokens": [0]}])
def test_a_constraint_may_fail_for_texts_that_decoding_cannot_reach(
    models, door, decoder, sampling
):
    """Drafts contain forbidden tokens, and tokens after an end."""
    model, target, draft = models
    tokens = {row: [t for t in range(3, 13) if (t + row) % 3] for row in range(3, 13)}

    def allowed(row: int, ids: torch.Tensor) -> list[int]:
        text = ids.tolist()[6:]
        for before, token in itertools.pairwise(text):
            {token: 0 for token in tokens[before] if token != 12}[token]  # or KeyError
        return tokens[text[-1]] if text else [3, 4]

    options = {"prefix_allowed_tokens_fn": allowed, "max_new_tokens": 30, "eos_token_id": 12}
    if sampling:
        expected = run(door, target, IDS, decoder="greedy", **options, **sampling).tolist()
    else:
        expected = hf(model, **options)
    own = draft if needs_draft(decoder) else None
    found = run(door, target, IDS, draft=own, decoder=decoder, **options, **sampling)
    assert found.tolist() == expected


CONFIGURED = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "suppress_tokens": [7]}


@both_doors
def test_the_models_own_configuration_is_honoured_whole(models, door):
    model, draft = copy.deepcopy(models[0]), models[2]
    for name, value in CONFIGURED.items():
        setattr(model.generation_config, name, value)
    expected = plain(model, IDS[0].tolist(), 30)
    assert expected != plain(models[0], IDS[0].tolist(), 30)
    assert run(door, model, IDS, draft=draft, max_new_tokens=30)[0].tolist() == expected
    off = dict.fromkeys(["eos_token_id", *CONFIGURED])  # None is not the model's own value
    expected = plain(models[0], IDS[0].tolist(), 30)
    rule = {"draft": draft, "max_new_tokens": 30, **off}
    assert run(door, model, IDS, **rule)[0].tolist() == expected
    given = GenerationConfig(repetition_penalty=3.0)
    assert run(door, model, IDS, generation_config=given, **rule)[0].tolist() == expected


@both_doors
def test_a_row_that_ends_at_the_last_position_says_so(models, door, caplog):
    model, _, draft = models
    rule = {"draft": draft, "eos_token_id": None}
    found = run(door, model, IDS, max_new_tokens=CONTEXT, **rule)
    assert found.shape[-1] == CONTEXT + 1 and "row 0 ends at the model's last" in caplog.text
    caplog.clear()
    run(door, model, IDS, max_new_tokens=CONTEXT - IDS.shape[-1] + 1, **rule)
    assert "last position" not in caplog.text


def padded(prompts: list[list[int]], pad: int = 0) -> dict[str, torch.Tensor]:
    """A tokenizer's batch, padded on the left."""
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(p)) + p for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@both_doors
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_rows_are_decoded_together_each_with_its_streamer(models, door, decoder, batch_size):
    """`batch_size` at a time; a row leaves when it ends, and the next takes its place."""
    model, target, draft = models
    ids, mask = padded(PROMPTS).values()
    options = {"max_new_tokens": 25, "eos_token_id": [4, 9], "pad_token_id": 11, "decoder": decoder}
    expected = copy.deepcopy(model).generate(
        ids, attention_mask=mask, do_sample=False, **{**options, "decoder": None}
    )
    streamers, widths = [Collected() for _ in PROMPTS], []
    generate(target, ids, attention_mask=mask, max_new_tokens=1)  # its trials are not counted
    hook = target.register_forward_pre_hook(
        lambda _, __, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    own = {"streamer": streamers, "attention_mask": mask, "batch_size": batch_size, "draft": draft}
    out = run(door, target, ids, return_dict_in_generate=True, **own, **options)
    hook.remove()
    assert torch.equal(out.sequences, expected)
    for row, collected in zip(expected.tolist(), streamers, strict=True):
        assert row[: len(collected.tokens)] == collected.tokens and collected.ended == 1
    steps = [len(trace.steps) for trace in out.traces]
    calls = {None: max(steps), 1: sum(steps)}.get(batch_size, len(widths))
    assert calls <= len(widths) < calls + 8 and len(widths) <= sum(steps) + 8


@both_doors
def test_a_dictionary_holds_the_sequences_and_what_it_took(models, door):
    _, target, draft = models
    batch, options = padded(PROMPTS), {"max_new_tokens": 30, "return_dict_in_generate": True}
    ids, mask = batch.values()
    how = {"attention_mask": mask, "draft": draft, "decoder": "speculative"}
    found = run(door, target, ids, **how, **options)
    assert isinstance(found, Generated) and found["sequences"] is found.sequences
    assert found.hidden_states is None, "transformers' own fields are there"
    assert found.sequences.shape == (3, ids.shape[-1] + 30)
    assert [trace.tokens[: trace.prompt_len] for trace in found.traces] == PROMPTS
    assert found.calls == sum(len(trace.steps) for trace in found.traces)
    assert found.calls + found.accepted == 30 * 3 and found.draft_calls
    criteria = [after(*found.sequences[0, -3:].tolist())]
    short = run(door, target, IDS, draft=draft, stopping_criteria=criteria, **options)
    assert sum(s.new for s in short.traces[0].steps) == short.sequences.shape[-1] - 6 < 30


@both_doors
def test_pad_tokens_without_a_mask_are_padding_as_for_transformers(models, door):
    model, target, draft = models
    ids, rule = torch.tensor([[0, 0, *PROMPTS[0]]]), {"max_new_tokens": 20, "eos_token_id": 12}
    assert run(door, target, ids, draft=draft, **rule).tolist() == hf(model, ids, **rule)
    inside = torch.tensor([[5, 0, 7]])
    with pytest.raises(ValueError, match="set the mask to 1 where the pad token is text"):
        run(door, target, inside, draft=draft, **rule)
    mask = torch.ones_like(inside)
    out = run(door, target, inside, attention_mask=mask, draft=draft, **rule)
    assert out.tolist() == hf(model, inside, attention_mask=mask, **rule)


@both_doors
def test_several_sequences_of_a_prompt_are_samples_of_their_own(models, door):
    _, target, draft = models
    out = run(door, target, IDS, draft=draft, seed=4, num_return_sequences=3, **SAMPLING)
    for row in range(3):
        alone = generate(target, IDS, decoder="greedy", seed=4 + row, **SAMPLING)
        assert torch.equal(out[row : row + 1], alone)
    encoder = {"encoder_repetition_penalty": 1.6, "encoder_no_repeat_ngram_size": 2}
    options = {"draft": draft, "seed": 4, **SAMPLING, **encoder}
    ids = torch.tensor([prompt_of(9), prompt_of(9, 1)])
    out = run(door, target, ids, num_return_sequences=2, **options)
    assert torch.equal(out, run(door, target, ids.repeat_interleave(2, dim=0), **options))
    with pytest.raises(ValueError, match="num_return_sequences"):
        run(door, target, IDS, num_return_sequences=2, max_new_tokens=4)


def test_scores_and_logits_are_transformers_own(models):
    model, target, draft = models
    rule = {"max_new_tokens": 20, "repetition_penalty": 1.3, "eos_token_id": 4}
    rule |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected = copy.deepcopy(model).generate(**padded(PROMPTS), do_sample=False, **rule)
    found = generate(target, **padded(PROMPTS), draft=draft, **rule)
    assert torch.equal(found.sequences, expected.sequences)
    assert len(found.scores) == len(found.logits) == len(expected.scores)
    lengths = [len(trace.new_tokens) for trace in found.traces]
    for ours, theirs in ((found.scores, expected.scores), (found.logits, expected.logits)):
        for row, length in enumerate(lengths):
            rows = (torch.stack([own[row] for own in kind[:length]]) for kind in (ours, theirs))
            torch.testing.assert_close(*rows)
            assert not torch.stack([torch.zeros(13), *(o[row] for o in ours[length:])]).any()
    sampled = generate(target, IDS, draft=draft, top_k=3, seed=1, **rule | SAMPLING)
    assert all(int(own.isfinite().sum()) == 3 for own in sampled.scores)
    assert len(repr(found)) < 100 and generate(target, IDS, **rule | {"output_scores": False})


class Masking(LogitsProcessor):
    """Leaves nothing to choose after texts that a test names."""

    reads_text_only = True

    def __init__(self, bad, value: float) -> None:
        self.bad, self.value = bad, value

    def __call__(self, input_ids, scores):
        rows = torch.tensor([self.bad(text) for text in input_ids.tolist()])
        return scores.masked_fill(rows[:, None], self.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("decoder", DECODERS)
def test_logits_that_cannot_be_sampled_from_are_an_error_where_they_are_reached(
    models, decoder, value
):
    """After a rejected draft token they change nothing."""
    _, target, draft = models
    options = {"draft": draft, "decoder": decoder, "seed": 4, **SAMPLING}
    text = generate(target, IDS, **options)[0].tolist()
    elsewhere = [Masking(lambda t: t != text[: len(t)], value)]
    assert generate(target, IDS, logits_processor=elsewhere, **options)[0].tolist() == text
    reached = {"logits_processor": [Masking(lambda t: len(t) == 15, value)]}
    with pytest.raises(ValueError, match="no distribution to sample token 15 from"):
        generate(target, IDS, **reached, **options)
    long = [lambda ids, scores, **_: ids.shape[-1] >= 15]  # answers with a Python bool
    sure = {**options, "draft": target, "stopping_criteria": long}  # drafts beyond the end
    assert generate(target, IDS, **reached, **sure)[0].tolist() == text[:15]


class Counts(StoppingCriteria):
    """Stops at its eighth call."""

    calls = 0

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        return torch.full((len(input_ids),), self.calls >= 8)


@both_doors
def test_a_criterion_counts_the_tokens_of_each_row(models, door):
    model, target, draft = models
    options = {**padded(PROMPTS), "max_new_tokens": 20, "pad_token_id": 0}
    ids = options.pop("input_ids")
    out = run(door, target, ids, draft=draft, stopping_criteria=[Counts()], **options)
    assert out.tolist() == hf(model, ids, stopping_criteria=[Counts()], **options)


WRONG = [
    ({"num_beams": 3}, "num_beams=3"),
    ({"watermarking_config": {"bias": 2.0}}, "WatermarkLogitsProcessor"),
    ({"logits_processor": [Stateful()]}, "Stateful"),
    ({"logits_processor": [type("TopKLogitsWarper", (Stateful,), {})()], **SAMPLING}, "keep state"),
    ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions=True"),
    ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]])}, "on the left only"),
    ({"attention_mask": torch.zeros_like(IDS)}, "not be empty"),
    ({"ids": torch.tensor([[1, 99, 2]])}, "the prompt holds id 99, the model knows ids 0 to 12"),
    ({"ids": torch.cat([IDS, IDS]), "streamer": Collected()}, "2 rows: give a list of as many"),
    ({"batch_size": 0}, "batch_size is 0; choose at least 1"),
    ({"decoder": "ouroboros_paper"}, "needs draft="),
    ({"decoder": "medusa"}, "no decoder 'medusa'; choose from greedy, lookahead, ouroboros"),
    ({"do_sample": True, "temperature": 0.0}, "strictly positive"),
    ({"max_new_tokens": -1}, "greater than 0, but is -1"),
    ({"draft": "a/folder"}, "draft='a/folder' is a str, not a model: give one"),
]
OF_GENERATE = [
    ({"decoder": PromptLookup(max_ngram_size=2, num_tokens=3), "gamma": 4}, "gamma: pass it to"),
    ({"decoder": PromptLookup(max_ngram_size=2, num_tokens=3), "draft": llama()}, "draft: pass it"),
    ({"max_new_token": 8}, "did you mean max_new_tokens"),
    ({"max_node": 8}, "did you mean max_nodes"),
    ({"sede": 8}, r"mean seed\?\); choose from .*, transformers' generation options \("),
    ({"gama": 4}, "no option 'gama'"),
    ({"pixel_values": torch.zeros(1)}, "no option 'pixel_values'"),
    ({"attention_mask": torch.ones(1, 3)}, r"shape \[1, 3\], input_ids \[1, 6\]"),
    ({"ids": IDS[0]}, r"shape \[6\]; \[rows, length\]"),
    ({"ids": [1, 2]}, "is a list: give the tokenizer's tensor"),
]
CASES = [(door, *case) for case in WRONG for door in ("generate", "custom_generate")]


@pytest.mark.parametrize(
    ("door", "options", "reason"), [*CASES, *(("generate", *case) for case in OF_GENERATE)]
)
def test_what_is_wrong_is_named(models, door, options, reason):
    options = {"max_new_tokens": 5, **options}
    with pytest.raises(ValueError, match=reason):
        run(door, models[1], options.pop("ids", IDS), **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pixel_values", torch.zeros(1, 6)),
        ("inputs_embeds", torch.zeros(1, 6)),
        ("position_ids", IDS),
        ("past_key_values", DynamicCache((torch.zeros(2, 1, 1, 3, 1),))),
        ("mm_encoder_outputs", {"image": torch.zeros(1, 6)}),
    ],
)
def test_an_input_that_would_be_ignored_is_refused(models, name, value):
    with pytest.raises(ValueError, match=name):
        custom_generate(decoder="greedy")(models[1], IDS, **{name: value})


def test_inputs_that_other_code_prepares_are_refused():
    """As with PEFT's prompt tuning, which puts embeddings before the prompt."""
    name = "prepare_inputs_for_generation"
    own_class, own_method = llama(), llama()
    own_class.__class__ = type("Own", (type(own_class),), {name: lambda model, ids, **_: {}})
    setattr(own_method, name, lambda ids, **_: {})
    for model in (own_class, own_method):
        with pytest.raises(ValueError, match=f"{name} was replaced"):
            generate(model, IDS, max_new_tokens=4)


def test_settings_of_a_named_decoder_replace_tuned_ones():
    tuned = decoder_config("speculative")
    made = make_decoder("speculative", CachedModel(llama()), gamma=1)
    assert made.gamma == 1 < tuned["gamma"] and made.confidence == tuned["confidence"]
    warm, cold = map(decoder_config, ("ouroboros_paper_warm", "ouroboros_paper"))
    assert warm == {**cold, "pool_state": "task"}  # upon the config it is built on


HUB = {"custom_generate": str(ROOT / "hub"), "trust_remote_code": True}


def test_the_hubs_folder_works_through_transformers_itself(models, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    model, target, draft = models
    expected, streamer = plain(model, IDS[0].tolist(), 25), Collected()
    options = {"max_new_tokens": 25, "streamer": streamer, **HUB}
    mask = torch.ones_like(IDS)
    out = target.generate(input_ids=IDS, attention_mask=mask, assistant_model=draft, **options)
    assert out[0].tolist() == streamer.tokens == expected and streamer.ended == 1
    options = {"max_new_tokens": 25, "return_dict_in_generate": True, **HUB}
    found = target.generate(IDS, decoder="lookahead", **options)
    assert found.sequences[0].tolist() == expected and found.calls < 25
    batch = padded(PROMPTS)
    out = target.generate(**batch, assistant_model=draft, max_new_tokens=9, **HUB)
    assert torch.equal(out, copy.deepcopy(model).generate(**batch, max_new_tokens=9))
    monkeypatch.setattr(target.generation_config, "eos_token_id", expected[12])
    out = target.generate(IDS, eos_token_id=None, max_new_tokens=25, **HUB)
    assert out[0].tolist() == expected
    with pytest.raises(ValueError, match="num_beams=3"):
        target.generate(IDS, num_beams=3, **HUB)
