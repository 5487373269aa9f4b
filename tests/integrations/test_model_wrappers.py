"""Model wrappers between calls of `generate`: cached, restored, locked and freed."""

import copy
import gc
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import accelerate
import pytest
import torch
from ouroboros.baselines import Speculative
from tiny import StepLog, llama, plain, prompt_of, tokenizer

from ouroboros import CachedModel, ModelChanged, custom_generate, generate
from ouroboros.decode import RootOnly
from ouroboros.engine import model as engine

PROMPTS = [prompt_of(6), prompt_of(9, 1), prompt_of(3, 2)]
IDS = torch.tensor(PROMPTS[:1])


def test_a_model_is_examined_once_and_freed_with_its_owner(models, monkeypatch):
    examined, real = [], engine.check_tree_support
    monkeypatch.setattr(
        engine, "check_tree_support", lambda model: examined.append(id(model)) or real(model)
    )
    model, draft = copy.deepcopy(models[0]), copy.deepcopy(models[2])
    rule = {"draft": draft, "max_new_tokens": 8}
    first = generate(model, IDS, **rule)
    assert torch.equal(generate(model, IDS, **rule), first) and len(examined) == 2
    own = custom_generate(draft=draft)
    assert torch.equal(model.generate(IDS, max_new_tokens=8, custom_generate=own), first)
    assert len(examined) == 2
    model.float()
    generate(model, IDS, **rule)
    assert examined[2:] == [id(model)]
    copied, gone = copy.deepcopy(model), weakref.ref(model)
    generate(copied, IDS, **rule)
    assert examined[3:] == [id(copied)]
    gc.collect()
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_attention_and_mode_are_put_back(models):
    model, draft = copy.deepcopy(models[0]), copy.deepcopy(models[2])
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    for attention in ("sdpa", "sdpa", "eager"):
        model.set_attn_implementation(attention)
        generate(model, IDS, draft=draft, max_new_tokens=5)
        assert model.config._attn_implementation == attention
        assert draft.config._attn_implementation == "sdpa"
        assert [module.training for module in model.modules()] == modes and not draft.training
    with pytest.raises(ValueError, match="needs draft="):
        generate(model, IDS, decoder="speculative", max_new_tokens=5)
    assert model.config._attn_implementation == "eager"


def in_threads(work: Callable, jobs: list) -> None:
    """Run jobs at once; what one raises is raised."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: work(*job), jobs, timeout=60))


def test_threads_on_one_pair_wait_for_each_other(models):
    model, draft = copy.deepcopy(models[0]), copy.deepcopy(models[2])

    def work(target, small, original, prompt) -> None:
        out = generate(target, torch.tensor([prompt]), draft=small, max_new_tokens=30)
        assert out[0].tolist() == plain(original, prompt, 30)

    pairs = ((model, draft, models[0]), (draft, model, models[2]))
    in_threads(work, [(*pair, prompt) for prompt in PROMPTS for pair in pairs])


class OneText(RootOnly):
    """Fails where the texts of two calls are mixed."""

    def reset(self, choose) -> None:
        self.text: list[int] = []

    def propose(self, tokens, budget):
        time.sleep(0.001)
        assert list(tokens[: len(self.text)]) == self.text
        self.text = list(tokens)
        return super().propose(tokens, budget)


@pytest.mark.parametrize("decoder", ["lookahead", OneText()])
def test_threads_share_one_decoder_for_several_models(decoder):
    """Each call has its own length and model, and the decoder's state is not mixed up."""
    targets = [llama(seed) for seed in range(3)]
    originals, own = copy.deepcopy(targets), custom_generate(decoder=decoder)

    def work(index: int, max_new: int) -> None:
        ids = torch.tensor([PROMPTS[index]])
        expected = [plain(originals[index], PROMPTS[index], max_new)]
        out = targets[index].generate(ids, max_new_tokens=max_new, custom_generate=own)
        assert out.tolist() == expected
        assert (
            generate(targets[index], ids, decoder=decoder, max_new_tokens=max_new).tolist()
            == expected
        )

    in_threads(work, [(index, max_new) for max_new in (5, 20, 33) for index in range(3)])


@pytest.mark.parametrize("decoder", ["speculative", "ouroboros"])
def test_a_changed_cached_model_is_refused_until_it_is_refreshed(decoder):
    model = llama(attention_dropout=0.5)
    original, wrapped = copy.deepcopy(model), CachedModel(model)
    rule = {"draft": wrapped, "decoder": decoder, "max_new_tokens": 20}  # its own draft
    model.train()
    generate(wrapped, IDS, **rule)
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        for weight in (*model.parameters(), *original.parameters()):
            weight.mul_(-1.0)
    with pytest.raises(ModelChanged, match="refresh"):
        generate(wrapped, IDS, **rule)
    wrapped.refresh()
    assert generate(wrapped, IDS, **rule)[0].tolist() == plain(original, PROMPTS[0], 20)


def test_a_draft_is_limited_to_each_targets_vocabulary_in_turn(models):
    wide = CachedModel(llama(1, vocab_size=40))
    drafter = StepLog(Speculative(wide, gamma=4))
    for target in (models[1], llama(vocab_size=20), models[1]):
        expected = plain(copy.deepcopy(target), PROMPTS[0], 20)
        for rule in ({"draft": wide, "decoder": "speculative"}, {"decoder": drafter}):
            assert generate(target, IDS, max_new_tokens=20, **rule)[0].tolist() == expected
        drafted = {token for *_, tree, _, _ in drafter.steps for token in tree.tokens}
        assert max(drafted) < target.vocab_size and wide.width == 40
        drafter.steps.clear()


def test_models_whose_tokenizers_differ_are_refused(tmp_path):
    target, draft = llama(), llama(1)
    for model, name, words in ((target, "a", {}), (draft, "b", {"zebra": 7})):
        tokenizer(13, **words).save_pretrained(tmp_path / name)
        model.name_or_path = str(tmp_path / name)
    with pytest.raises(ValueError, match="id 7 is 'w7' for the target and 'zebra' for the draft"):
        generate(target, IDS, draft=draft, max_new_tokens=4)
    assert generate(target, IDS, draft=llama(1), max_new_tokens=4).shape == (1, 10)


def test_an_offloaded_model_runs_on_its_execution_device(models):
    offloaded = accelerate.cpu_offload(copy.deepcopy(models[0]), torch.device("cpu"))
    expected = plain(models[0], PROMPTS[0], 12)
    assert generate(offloaded, IDS, max_new_tokens=12)[0].tolist() == expected


def test_compiled_and_data_parallel_models_are_unwrapped_and_others_named(models):
    model, target, draft = models
    for wrap in (torch.compile, torch.nn.DataParallel):
        out = generate(wrap(target), IDS, draft=wrap(draft), max_new_tokens=12)
        assert out[0].tolist() == plain(model, PROMPTS[0], 12)
    with pytest.raises(ValueError, match="is a Sequential, not a model: give one of transformers"):
        generate(torch.nn.Sequential(target), IDS, max_new_tokens=4)
