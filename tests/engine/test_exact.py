"""Exact calls: logits are bitwise identical in trees, in single steps and for chunked prompts."""

import os
import random
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from architectures import SUPPORTED, config_of
from ouroboros.baselines import Greedy, PromptLookup, Speculative
from tiny import RandomDrafter, build, llama, mostly_slow, noisy, prompt_of, random_tree

from ouroboros import CachedModel, Ouroboros, TokenTree, decode
from ouroboros.core.select import Argmax, Sampler
from ouroboros.engine import cpu_kernels
from ouroboros.engine.exact import Reach, check_exact
from ouroboros.engine.fused import Fused
from ouroboros.engine.masks import Layout

LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = (torch.float32, torch.bfloat16)
KINDS = [(name, dtype, None) for name in LIKE_LLAMA for dtype in DTYPES]
FEW = [(*kind, 4, 20) for kind in (*KINDS, *(("llama", dtype, 128) for dtype in DTYPES))]


def exact(model) -> CachedModel:
    made = CachedModel(model, engine="fused")
    assert made.exact
    return made


def different_nodes(name: str, dtype: torch.dtype, trees: int, *, nodes: int, **other) -> int:
    """How many nodes of random trees, below prompts of random lengths fed in random pieces, have
    other logits than the same tokens fed one by one. `other` settings change the model's shape."""
    config = config_of(name, SUPPORTED[name] | other)
    model = exact(build(config, dtype=dtype))
    draw, different = random.Random(name), 0
    for _ in range(trees):
        prompt = prompt_of(draw.randrange(1, 40), draw.randrange(999))
        tree = random_tree(draw, prompt[-1], draw.randrange(2, nodes))
        inside = model.new_sequence()
        for cut in sorted(draw.sample(range(1, len(prompt) + 1), min(2, len(prompt)))):
            model.score(inside, prompt[:cut], TokenTree.chain(prompt[cut - 1], ()))
        scored = model.score(inside, prompt, tree).clone()
        model.empty()
        alone = model.new_sequence()  # reads the prompt once, then each path
        for node in range(len(tree)):
            text = prompt[:-1] + [tree.tokens[n] for n in tree.path_to(node)]
            for end in range(len(prompt) - 1 if node else 0, len(text)):
                single = model.score(alone, text[: end + 1], TokenTree.chain(text[end], ()))
                model.accept(alone, [0])
            different += not torch.equal(single[0], scored[node])
    return different


@pytest.mark.parametrize(
    ("name", "dtype", "head_dim", "trees", "nodes"),
    mostly_slow(
        [*FEW, *((*kind, 60, 40) for kind in KINDS)], quick=[FEW[0], *FEW[1:8:6], *FEW[8:]]
    ),
    ids=str,
)
def test_a_node_has_the_bits_of_single_steps(name, dtype, head_dim, trees, nodes) -> None:
    other = {"head_dim": head_dim} if head_dim else {}
    assert different_nodes(name, dtype, trees, nodes=nodes, **other) == 0


def attend(queries, keys, values, reach: Reach, windowed: bool, scaling: float) -> torch.Tensor:
    """Attend as the kernel does: all work items in turn."""
    (n, heads, _), kv_heads = queries.shape, len(keys)
    out = keys.new_empty(n, heads, values.shape[-1])
    kind = torch.uint16 if keys.dtype == torch.bfloat16 else keys.dtype
    keys, values, bits = (part.contiguous().view(kind).numpy() for part in (keys, values, out))
    first = reach.first[int(windowed)]
    slots = first, reach.lengths, reach.straight, reach.tails, np.float32(scaling), bits
    for item in range(cpu_kernels._items(n, heads, kv_heads)):
        cpu_kernels._attend(item, kv_heads, queries.numpy(), keys, values, *slots)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "value_width", "window"),
    [
        (8, 2, 128, 128, None),
        (9, 3, 64, 64, None),
        (9, 3, 64, 64, 50),
        (3, 3, 80, 80, 40),  # one query per key head, half a tile of columns
        (6, 2, 24, 8, 7),  # columns that do not fill a vector
        (5, 1, 64, 96, None),  # queries of several rows share a tile
        (130, 1, 16, 16, 20),  # more queries of a row than an item has
    ],
)
def test_attention_gives_a_row_its_bits_whatever_the_other_rows(
    heads, kv_heads, width, value_width, window, dtype
) -> None:
    draw = random.Random(width)
    torch.manual_seed(0)
    scaling = width**-0.5
    for cached, fed, nodes in ((0, 1, 1), (0, 150, 1), (13, 5, 30), (200, 0, 64), (333, 20, 9)):
        tree = random_tree(draw, 0, nodes)
        reach = Reach.of(Layout(cached, [0] * fed, tree), window)
        slots, n = cached + fed + nodes, fed + nodes
        queries = torch.randn(n, heads, width).to(dtype).float()
        keys = torch.randn(kv_heads, slots + 9, width).to(dtype)
        values = torch.randn(kv_heads, slots + 9, value_width).to(dtype)
        keys[:, slots:] = values[:, slots:] = torch.nan  # never read
        found = attend(queries, keys, values, reach, window is not None, scaling)
        for row in {0, n - 1, *draw.sample(range(n), min(n, 9))}:
            arrays = (reach.lengths, reach.straight, reach.tails)
            own = Reach(
                *(part[row : row + 1] for part in arrays), reach.first[:, row : row + 1].copy()
            )
            alone = attend(queries[row : row + 1], keys, values, own, window is not None, scaling)
            assert torch.equal(alone[0], found[row])
            seen = [*range(reach.straight[row]), *reach.tails[row]][: reach.lengths[row]]
            seen = seen[reach.first[int(window is not None), row] :]
            group = heads // kv_heads
            k, v = (x[:, seen].double().repeat_interleave(group, 0) for x in (keys, values))
            weights = (scaling * torch.einsum("hw,hsw->hs", queries[row].double(), k)).softmax(-1)
            expected = torch.einsum("hs,hsw->hw", weights, v)
            error = (found[row].double() - expected).abs().max()
            assert error < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize(
    ("temperature", "dtype"), mostly_slow(product([0.0, 0.8], DTYPES), quick=[(0.8, DTYPES[1])])
)
def test_every_decoder_writes_the_text_of_plain_decoding_in_half_precision(
    temperature, dtype
) -> None:
    hub = llama(dtype=dtype, num_hidden_layers=2)
    draft = CachedModel(noisy(hub))
    target = exact(hub)
    for seed in range(4):
        prompt, choose = prompt_of(9, seed), Argmax()
        if temperature:
            choose = Sampler(temperature=temperature, seed=seed)
        texts = [
            decode(target, drafter, prompt, max_new=40, choose=choose).tokens
            for drafter in (
                Greedy(),
                RandomDrafter(prompt, seed=seed, hit=0.5),
                Speculative(draft, gamma=4),
                PromptLookup(max_ngram_size=2, num_tokens=4),
                Ouroboros(draft),
            )
        ]
        assert all(text == texts[0] for text in texts)


def test_long_contexts_and_many_rows_are_exact() -> None:
    model = build(config_of("qwen2", SUPPORTED["qwen2"] | {"max_position_embeddings": 600}))
    target = exact(model.bfloat16())
    prompt = prompt_of(300)
    sequence = target.new_sequence()
    whole = target.score(sequence, prompt, TokenTree.chain(prompt[-1], tuple(prompt[:140]))).clone()
    target.empty()
    sequence = target.new_sequence()
    for count in (64, 129, 130, 300):
        last = target.score(sequence, prompt[:count], TokenTree.chain(prompt[count - 1], ()))
    assert torch.equal(last[0], whole[0])
    text = prompt + prompt[:140]
    last = target.score(sequence, text, TokenTree.chain(text[-1], ()))
    assert torch.equal(last[0], whole[-1])


def test_the_check_at_load_finds_rows_that_round_otherwise(monkeypatch) -> None:
    target, plain = exact(llama(dtype=torch.float32)), Fused._by_kernel
    monkeypatch.setattr(
        Fused,
        "_by_kernel",
        lambda own, ids, *rest: plain(own, ids, *rest) * (1 + 1e-6 * (len(ids) > 1)),
    )
    with pytest.raises(ValueError, match="is not exact: the logits after node"):
        check_exact(target.engine)


@pytest.mark.slow
def test_calls_are_exact_on_a_processor_without_avx512(tmp_path):
    code = (
        "import llvmlite.binding as binding, pytest, sys\n"
        "known = binding.get_host_cpu_features()\n"
        "known = {k: on and 'avx512' not in k for k, on in known.items()}\n"
        "binding.get_host_cpu_features = lambda: known\n"
        "from ouroboros.engine import cpu_intrinsics\n"
        "assert cpu_intrinsics.LANES == 8\n"
        "kinds = 'attention_gives or (single_steps and 4-20)'\n"
        f"sys.exit(pytest.main(['-qm', '', '-k', kinds, {__file__!r}]))\n"
    )
    features = ",".join(f"+{name}" for name in ("avx", "avx2", "fma", "bmi", "bmi2", "f16c"))
    machine = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features}
    own = {**os.environ, **machine, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
