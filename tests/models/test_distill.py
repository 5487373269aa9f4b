"""A draft made from a tiny target: better than the untrained one, the same after an interrupt."""

import json
from collections import Counter

import pytest
import torch
from bench_models import byte_tokenizer, tiny_llama
from tiny import gemma3, gpt2
from transformers import AutoModelForCausalLM, Trainer

from ouroboros import CachedModel
from ouroboros.models import distill as distilling
from ouroboros.models.distill import (
    LEAST_STEPS,
    Recipe,
    agreement,
    chosen_layers,
    distill,
    pruned,
    write,
)

RECIPE = Recipe(layers=2, head=200, tokens=600, max_new=16)
CHAT = "<s>user\n{{ messages[0].content }}\nassistant\n"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few texts and small steps."""
    sizes = {"WAVE": 16, "HELD_OUT": 4, "TOGETHER": 8, "BATCH": 256, "READ": 20}
    for name, value in {**sizes, "QUESTION": 12, "OPENING": 4}.items():
        monkeypatch.setattr(distilling, name, value)


def target_of(template: str | None = None) -> CachedModel:
    """A model in which a token hardly depends on any but the last, so that little text suffices."""
    model = tiny_llama(0, layers=4)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.mul_(0.02)
    model.generation_config.eos_token_id = 7
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return CachedModel(model, tokenizer=tokenizer)


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return target_of()


def test_a_draft_is_better_than_the_untrained_and_loads_anywhere(target, tmp_path):
    made = distill(target, None, RECIPE, tmp_path)
    assert made.layers == [0, 3] and made.head == 200 and made.tokens >= 600
    assert made.untrained[0.0] + 0.1 < made.trained[0.0]
    ids = json.loads((tmp_path / "head_ids.json").read_text())
    assert len(set(ids)) == 200 and ids[0] == 7
    draft = CachedModel.from_pretrained(str(tmp_path), draft_head="auto")
    assert draft.head.ids[:-1].tolist() == sorted(ids)
    held_out, texts, _ = distilling.written(target, None, RECIPE, tmp_path / "work")
    assert agreement(draft, held_out) == made.trained
    assert Counter(text.temperature for text in held_out) == {0.0: 4, 0.8: 4}
    assert {text.temperature for text in texts} == {0.0, 0.8}
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.num_hidden_layers == 2 and model.dtype == torch.float32
    assert torch.equal(model.get_input_embeddings().weight, target.model.model.embed_tokens.weight)
    assert torch.equal(model.lm_head.weight, target.model.lm_head.weight)


def test_what_is_recorded_is_the_targets_distribution(target):
    (text,) = distilling.write(target, [([5, 9], 0.8, 3)], 8, ())
    tokens = torch.tensor([[*text.prompt, *text.new]])
    logs = target.model(tokens).logits[0, 1:-1].log_softmax(-1)
    best = logs.topk(32)
    assert torch.equal(text.ids.long(), best.indices)
    assert torch.allclose(text.logs.float(), best.values, atol=0.01)


@pytest.mark.parametrize("given", [False, True])
def test_an_interrupted_run_gives_the_same_draft(target, tmp_path, monkeypatch, given):
    """Interrupted while the target writes, and twice in training."""
    prompts = [[n, n + 1] for n in range(10, 22)] if given else None
    distill(target, prompts, RECIPE, tmp_path / "whole")
    monkeypatch.setattr(distilling, "SAVE_S", 0)  # save each step
    calls, write, step = Counter(), distilling.write, Trainer.training_step

    def counted(name, function, at):
        def call(*args, **how):
            calls[name] += 1
            if calls[name] in at:
                raise KeyboardInterrupt
            return function(*args, **how)

        return call

    monkeypatch.setattr(distilling, "write", counted("write", write, [4]))
    monkeypatch.setattr(Trainer, "training_step", counted("step", step, [3, 9]))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            distill(target, prompts, RECIPE, tmp_path / "cut")
    with pytest.raises(ValueError, match=r"cut was begun with layers=2: give the same options"):
        distill(target, prompts, Recipe(**{**vars(RECIPE), "layers": 1}), tmp_path / "cut")
    distill(target, prompts, RECIPE, tmp_path / "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_an_instruct_model_writes_user_turns_and_prompts_are_answered_in_turn():
    target = target_of(CHAT)
    (made,) = {tuple(p[:8]) for p in distilling.own_prompts(target, 6, distilling.random.Random(1))}
    assert target.tokenizer.decode(made) == "<s>user\n"
    prompts = [[n] for n in range(30, 38)]
    seen = [distilling._jobs(target, prompts, wave, 0, ()) for wave in (0, 1, 2)]
    assert [(p, t) for p, t, _ in seen[0]] == [([at], t) for at in (30, 34) for t in (0.0, 0.8)]
    again = Counter((tuple(prompt), t) for jobs in seen[1:] for prompt, t, _ in jobs)
    assert {again[(n,), 0.0] for n in range(30, 38)} == {1}
    assert {again[(n,), 0.8] for n in range(30, 38)} == {3}


def test_time_ends_the_writing_and_plans_the_steps(target, tmp_path):
    made = distill(target, None, Recipe(layers=1, minutes=0.02, max_new=400), tmp_path)
    assert made.texts < 200 and made.head == target.vocab_size
    assert made.layers == [3]


def test_a_budget_that_is_spent_at_once_still_gives_texts(target):
    jobs = [([1, 2, n], 0.8, n) for n in range(3)]
    texts = list(write(target, jobs, 400, (), until=0.0))
    assert [len(text.new) for text in texts] == [LEAST_STEPS + 1] * 3


@pytest.mark.parametrize(
    ("layers", "prompts", "message"),
    [
        (4, None, "layers=4: the target has 4; give a number from 1 to 3"),
        ([3, 0], None, r"layers=\[3, 0\]: the target has 4; .* some of 0 to 3 in ascending order"),
        ([0, 9], None, r"layers=\[0, 9\]: the target has 4"),
        (2, [[n % 5] for n in range(40)], "5 different prompts are too few: give 8 or more"),
    ],
)
def test_options_out_of_range_are_refused(target, tmp_path, layers, prompts, message):
    with pytest.raises(ValueError, match=message):
        distill(target, prompts, Recipe(layers=layers), tmp_path)


def test_targets_that_are_not_built_like_llama_are_refused():
    with pytest.raises(ValueError, match="GPT2LMHeadModel is not built like Llama"):
        chosen_layers(gpt2(), 1)
    capped = gemma3()
    capped.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="changes its logits by final_logit_softcapping"):
        chosen_layers(capped, 1)


def test_settings_of_each_layer_are_kept():
    model = gemma3()
    for kept, types in (([1], ["full_attention"]), ([0], ["sliding_attention"])):
        draft = pruned(model, kept)
        assert draft.config.layer_types == types
        old, new = model.model.layers[kept[0]], draft.model.layers[0]
        assert torch.equal(old.mlp.up_proj.weight.float(), new.mlp.up_proj.weight)
