"""Each architecture returns the tokens of `generate`, or is refused by name.

Nothing in `ouroboros` names a model. Configs are tiny and weights random, large and decisive; every
text is longer than every sliding window. `python tests/engine/test_architectures.py` prints the
table of docs/compatibility.md.
"""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from typing import NamedTuple

import pytest
import torch
import transformers
from architectures import MIXED, REFUSED, SUPPORTED, WINDOW, config_of
from ouroboros.baselines import Greedy, Lookahead, Speculative
from parts import InParts
from tiny import SIZES, RandomDrafter, build, llama, mostly_slow, noisy, plain, prompt_of
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedModel

from ouroboros import CachedModel, Ouroboros, OuroborosPaper, decode
from ouroboros.engine import support

LENGTH, NEW = 21, 16


class Row(NamedTuple):
    """One architecture: what attention it has, texts compared and unequal, and their variety."""

    model_class: str
    attention: str
    compared: int
    unequal: int
    distinct: int


def lively(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, list[int], list[int]]:
    """A model, a prompt and transformers' own text, the first that is not a loop of one token."""
    for seed in range(12):
        model = build(config_of(name, SUPPORTED[name]), seed=seed, dtype=dtype)
        prompt = prompt_of(LENGTH, seed)
        truth = plain(model, prompt, NEW)
        if len(set(truth[LENGTH:])) >= 4:
            break
    return model, prompt, truth


def compare(name: str, dtype: torch.dtype) -> Row:
    """Decode by the two decoders with the widest trees and by random trees, in float64 by others
    too; count the texts that are not transformers' own."""
    model, prompt, truth = lively(name, dtype)
    draft, target = CachedModel(noisy(copy.deepcopy(model))), CachedModel(model)
    drafters = [
        Ouroboros(draft),
        OuroborosPaper(draft, gamma=4, **SIZES),
        RandomDrafter(truth, seed=1, hit=0.8),
    ]
    calls = [(target, drafter) for drafter in drafters]
    if dtype == torch.float64:  # in parts; calls of fixed shapes too, as CUDA graphs need them
        others = Greedy(), Lookahead(**SIZES), Speculative(draft, gamma=4)
        calls += [(target, drafter) for drafter in others]
        for engine in ("eager", "static"):
            calls.append((InParts(model, engine=engine), RandomDrafter(truth, seed=2, hit=0.8)))
    texts = [decode(on, drafter, prompt, max_new=NEW).tokens for on, drafter in calls]
    info = target.engine.info
    sliding = "full and sliding" if info.layer_types else "sliding"
    return Row(
        type(model).__name__,
        "full" if info.sliding_window is None else sliding,
        len(texts),
        sum(text != truth for text in texts),
        len(set(truth[LENGTH:])),
    )


def refusal(name: str) -> tuple[str, str]:
    """The class of a model that cannot work, and why it is refused."""
    model = build(config_of(name, REFUSED[name][0]), dtype=torch.float32)
    with pytest.raises(ValueError) as found:
        CachedModel(model)
    return type(model).__name__, str(found.value)


CLOSELY = ("llama", "gemma3_text", "gpt2", "gpt_oss")
QUICK = {(name, torch.float32) for name in [*SUPPORTED][::6]}
QUICK |= {(name, torch.float64) for name in CLOSELY}


@pytest.mark.parametrize(
    ("name", "dtype"),
    mostly_slow(product(SUPPORTED, (torch.float32, torch.float64)), quick=QUICK),
    ids=str,
)
def test_every_decoder_equals_generate(name, dtype):
    row = compare(name, dtype)
    assert row.unequal == 0 and row.compared == (8 if dtype == torch.float64 else 3)
    assert row.distinct >= 4
    assert ("sliding_window" in SUPPORTED[name]) <= ("sliding" in row.attention)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_by_name_and_reason(name):
    model_class, reason = refusal(name)
    assert reason.startswith(model_class) and "choose" in reason
    with pytest.raises(ValueError, match=REFUSED[name][1]):
        raise ValueError(reason)


def test_an_encoder_decoder_is_refused():
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    model = BartForConditionalGeneration(BartConfig(vocab_size=13, **sizes))
    with pytest.raises(ValueError, match="BartForConditionalGeneration is an encoder-decoder"):
        CachedModel(model)


@pytest.mark.parametrize(
    ("at", "when"),
    [(-1, range(1, 99)), (-1, [1]), (-1, range(2, 99)), (0, range(2, 99))],
    ids=["last position", "single steps", "last position of a prefill", "first of a prefill"],
)
def test_hooks_that_act_otherwise_in_short_calls_are_refused(at, when):
    def steer(_, __, out):
        out = out.clone()
        out[:, at] += torch.linspace(-2, 2, 16) * (out.shape[1] in when)
        return out

    model = llama()
    model.model.layers[0].register_forward_hook(steer)
    with pytest.raises(ValueError, match="other logits in short calls"):
        CachedModel(model)


def test_the_trial_leaves_the_config_as_it_was():
    model = build(config_of("gemma3_text", MIXED))
    before = model.config.to_dict()
    CachedModel(model)
    different = {key for key, value in model.config.to_dict().items() if before[key] != value}
    assert all("attn" in key for key in different)


@pytest.mark.parametrize("most", [support.WIDENED_BYTES, 0], ids=["at once", "by module"])
def test_half_precision_hides_nothing_from_the_trial(monkeypatch, most):
    """Models of bfloat16 are tried in float32, large ones module by module; their weights come
    back."""
    monkeypatch.setattr(support, "WIDENED_BYTES", most)
    good, bad = (
        build(config_of(name, config), dtype=torch.bfloat16)
        for name, config in (("llama", {}), ("mpt", REFUSED["mpt"][0]))
    )
    before = {name: (own.data_ptr(), own.dtype) for name, own in good.named_parameters()}
    computed = set()
    first = good.model.layers[0].mlp.up_proj.weight
    good.lm_head.register_forward_hook(lambda *found: computed.add((found[-1].dtype, first.dtype)))
    info = support.check_tree_support(good)
    assert {layer.dtype for layer in info.layers} == {torch.bfloat16}
    assert (torch.float32, torch.float32 if most else torch.bfloat16) in computed
    assert not good.lm_head._forward_pre_hooks
    assert {n: (own.data_ptr(), own.dtype) for n, own in good.named_parameters()} == before
    with pytest.raises(ValueError, match=r"its logits move by 0\.0[2-9]"):
        support.check_tree_support(bad)
    monkeypatch.setattr(support, "_widened", lambda model: nullcontext(model.dtype))
    with pytest.raises(ValueError, match=r"its logits move by 0\.[4-9]"):  # as if quantised
        support.check_tree_support(bad)


def test_weights_that_cannot_be_upcast_stay_as_they_are(monkeypatch, caplog):
    """As those that another module uses, or for lack of memory."""
    monkeypatch.setattr(support, "WIDENED_BYTES", 0)
    model, computed = build(config_of("llama", {}), dtype=torch.bfloat16), set()

    def refuse(*found):
        computed.add(found[-1].dtype)
        if found[-1].dtype == torch.float32:
            raise RuntimeError("expected bfloat16")

    model.lm_head.register_forward_hook(refuse)
    assert support.check_tree_support(model).dtype == torch.bfloat16
    assert computed == {torch.bfloat16, torch.float32} and "not upcast" in caplog.text


def test_a_call_that_fails_for_another_reason_is_refused_for_that_reason(monkeypatch):
    """As experts' kernels that know no float64: masks have nothing to do with it."""
    model = llama()

    def forward(*args, **kwargs):
        raise RuntimeError("no kernel for this dtype")

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(ValueError, match=r"cannot be called in torch.float64 .* no kernel"):
        CachedModel(model)


def table() -> Iterator[str]:
    """The lines of the compatibility table, as Markdown."""
    yield (
        f"transformers {transformers.__version__}: {len(SUPPORTED)} architectures, {LENGTH} prompt "
        f"tokens, {NEW} new tokens, sliding windows of {WINDOW}\n"
    )
    yield "| architecture | class | attention | texts compared with `generate` | unequal |"
    yield "|---|---|---|---|---|"
    for name in sorted(SUPPORTED):
        row, more = (compare(name, dtype) for dtype in (torch.float32, torch.float64))
        counts = f"{row.compared + more.compared} | {row.unequal + more.unequal}"
        yield f"| {name} | {row.model_class} | {row.attention} | {counts} |"
    yield "\n| refused | class | reason |\n|---|---|---|"
    for name in REFUSED:
        model_class, reason = refusal(name)
        yield f"| {name} | {model_class} | {reason.removeprefix(model_class).strip()} |"


if __name__ == "__main__":
    print(*table(), sep="\n")
