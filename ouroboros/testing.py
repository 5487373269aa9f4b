"""Test that your own drafter is lossless.

    def test_mine():
        assert_lossless(lambda: MyDrafter(size=4))

The models are tiny, random and in float64. Their vocabulary is so small that random drafts are
often accepted, and their greedy text is not periodic. Every output is compared with that of
standard decoding.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ouroboros.calls import Steps
from ouroboros.core.select import Sampler, TokenSelector, argmax
from ouroboros.core.trace import first_mismatch
from ouroboros.core.tree import TokenTree
from ouroboros.decode import Drafter, RootOnly, check_drafter, decode, proposed
from ouroboros.engine.model import CachedModel

VOCAB, CONTEXT, MAX_NEW = 13, 64, 40


def assert_lossless(
    drafter: Drafter | Callable[..., Drafter],
    *,
    temperatures: Sequence[float] = (0.0, 0.8),
    seeds: Collection[int] = range(3),
) -> None:
    """Assert that a drafter is lossless on `len(seeds)` tiny models: greedy and sampled, with and
    without end-of-sequence ids, and up to the end of the context.

    `drafter` is one drafter for all prompts, or a callable that returns a new one for each model. A
    callable with a parameter `draft` gets a draft model that often agrees with the target.

    Raises `AssertionError` with the case, index and tree of the first difference, and also if the
    drafter modifies the tokens passed to it, drafts an id beyond the vocabulary, or drafts more
    tokens than can be accepted. A drafter that only preserves the distribution (one with a `rule`)
    fails when sampling: pass `temperatures=(0.0,)`.
    """
    if not (len(seeds) and len(temperatures)):
        raise ValueError("nothing is tested: give at least one seed and one temperature")
    for seed in seeds:
        target = tiny_model(seed)
        subject: Any = drafter
        if isinstance(drafter, type) or not hasattr(drafter, "propose"):
            arguments = {}
            if "draft" in inspect.signature(drafter).parameters:
                model = copy.deepcopy(target.model)
                _add_noise(model, seed=1, step=0.03, keep=1.0)
                arguments["draft"] = CachedModel(model)
            subject = drafter(**arguments)
        check_drafter(subject)
        draw = random.Random(f"cases-{seed}")
        for temperature in temperatures:
            choose = Sampler(temperature=temperature, seed=seed) if temperature else argmax
            for length in (1, 5, 12):
                prompt = [draw.randrange(VOCAB) for _ in range(length)]
                name = f"model {seed}, temperature {temperature:g}, {length} prompt tokens"
                target.empty()
                text = decode(target, RootOnly(), prompt, max_new=2 * CONTEXT, choose=choose).tokens
                eos = text[length + MAX_NEW // 2 :][:2]
                for most, ends, case in (
                    (MAX_NEW, (), ""),
                    (MAX_NEW, eos, f", ends {sorted(eos)}"),
                    (2 * CONTEXT, (), ", the end of the context"),
                    (2, (), ", two tokens"),
                ):
                    recorder = _Recorder(subject, target.vocab_size)
                    _check(target, recorder, prompt, text, most, name + case, choose, ends)


def tiny_model(seed: int = 0) -> CachedModel:
    """Return a random float64 Llama with 13 token ids and 64 positions. Greedy decoding has no near
    ties, and an error in a mask, position or cache slot changes the text."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).double()
    _add_noise(model, seed=seed, step=0.4, keep=0.0)
    return CachedModel(model)


def _add_noise(model: PreTrainedModel, *, seed: int, step: float, keep: float) -> None:
    """Multiply the model's matrices by `keep`, and add Gaussian noise of standard deviation
    `step`."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                noise = torch.randn(weight.shape, generator=draw, dtype=weight.dtype)
                weight.mul_(keep).add_(step * noise)


def _check(
    target: CachedModel,
    recorder: _Recorder,
    prompt: list[int],
    text: list[int],
    max_new: int,
    case: str,
    choose: TokenSelector,
    eos: Collection[int],
) -> None:
    """Assert that decoding a prompt with the drafter gives `text`, the tokens of standard decoding,
    truncated by `max_new` and `eos`."""
    start = len(prompt)
    ends = [at for at, token in enumerate(text[:-1], start=1) if at > start and token in eos]
    expected = text[: min([start + max_new, *ends])]
    target.empty()
    decoded = decode(target, recorder, prompt, max_new=max_new, eos=eos, choose=choose).tokens
    at = first_mismatch(expected, decoded) or 0
    trees = [tree for known, tree in recorder.proposed if known <= at]
    assert decoded == expected, (
        f"{recorder.name} is not lossless ({case}): token {at} is {decoded[at : at + 1]}, standard "
        f"decoding has {expected[at : at + 1]}; the tree there was {trees[-1] if trees else None}"
    )


class _Recorder:
    """Wraps a drafter: records each proposed tree with the number of tokens before it; checks the
    tree's depth and ids (below `vocab`), and that the drafter leaves the tokens unchanged."""

    def __init__(self, drafter: Drafter, vocab: int) -> None:
        self.drafter, self.vocab = drafter, vocab
        self.name = type(drafter).__name__
        self.proposed: list[tuple[int, TokenTree]] = []

    def __getattr__(self, name: str):
        """Return the drafter's attribute (`reset`, `observe`, `draft`, `rule`, ...)."""
        return getattr(self.drafter, name)

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        shown = list(tokens)
        tree = yield from proposed(self.drafter, tokens, budget)
        call, depth = f"{self.name}.propose", tree.draft_depth()
        assert list(tokens) == shown, f"{call} changed the tokens passed to it: copy them"
        strange = [token for token in tree.tokens if not 0 <= token < self.vocab]
        assert not strange, f"{call} drafted id {strange[0]}, the model knows {self.vocab} ids"
        assert depth < budget, (
            f"{call} drafted {depth} tokens in a row with a budget of {budget}: draft at most "
            "budget - 1, the target adds one"
        )
        self.proposed.append((len(shown), tree))
        return tree
