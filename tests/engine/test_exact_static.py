"""Exact calls on a GPU: logits have the bits of single steps, in trees, pieces and joint calls.

The engine is tested on a CPU: with its two kernels replaced by torch code that computes row by row,
and with the kernels themselves in Triton's interpreter (which tests/engine/test_triton.py starts).
"""

from __future__ import annotations

import dataclasses
import random
from itertools import product

import pytest
import torch
from architectures import SUPPORTED, config_of
from ouroboros.baselines import Greedy, Speculative
from pretended_cuda import Graph, pretend
from row_by_row import attend_row_by_row, multiply_row_by_row
from tiny import RandomDrafter, build, llama, mostly_slow, noisy, prompt_of, random_tree

from ouroboros import CachedModel, Ouroboros, decode
from ouroboros.decode import begin, together
from ouroboros.engine import compiled_layers, exact_static, triton_exact, triton_products
from ouroboros.engine.exact import check_exact
from ouroboros.engine.exact_static import ExactStatic, RowOperators, make_exact_static
from ouroboros.engine.triton_exact import HEAD, TAILS
from ouroboros.select import Argmax, Sampler
from ouroboros.tree import TokenTree

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
ROWS = 16
CHOICES = [Argmax(), Sampler(temperature=0.8, seed=3)]
NAMES = ("llama", "mistral", "gemma3_text", "qwen2", "phi", "opt")
KERNELS = triton_exact.exact_attention, triton_products.exact_product
SLOW = [] if ON_GPU else [pytest.mark.slow]  # the interpreter takes minutes for a model
INTERPRETED = pytest.param("kernels", marks=[pytest.mark.triton, *SLOW])
REFERENCE = attend_row_by_row, multiply_row_by_row


@pytest.fixture
def exact(monkeypatch):
    """Makes a model whose engine is that of exact calls on a GPU, with parts of 16 positions."""
    monkeypatch.setattr(exact_static, "PART", 16)
    monkeypatch.setattr(triton_exact, "PART", 16)
    monkeypatch.setattr(triton_exact, "BLOCK", 16)
    monkeypatch.setattr(exact_static, "ROWS", ROWS)
    monkeypatch.setattr(exact_static, "padded_slots", lambda count: -(-count // 32) * 32)

    monkeypatch.setattr(exact_static, "triton", object())

    def make(model, how: str = "reference", *, backend=None, graphs: bool = False) -> CachedModel:
        attend, multiply = KERNELS if how == "kernels" else REFERENCE
        monkeypatch.setattr(exact_static, "exact_attention", attend)
        monkeypatch.setattr(compiled_layers, "exact_product", multiply)
        cached = CachedModel(model.to(DEVICE), engine="eager")
        model.set_attn_implementation(exact_static.NAME)
        engine = ExactStatic(model, cached._info, cached.cache, backend=backend)
        engine.graphs, cached.engine, cached._attention = graphs, engine, exact_static.NAME
        return cached

    return make


def made(model, backend=None) -> tuple[CachedModel, str]:
    """A model for which `make_exact_static` chose the engine, and the reason for a fallback."""
    cached = CachedModel(model, engine="eager")
    cached.engine, why = make_exact_static(model, cached._info, cached.cache, backend)
    cached._attention = exact_static.NAME
    return cached, why


def model_of(name: str, dtype: torch.dtype):
    return build(config_of(name, SUPPORTED[name] | {"hidden_size": 32}), dtype=dtype)


def single_steps(model: CachedModel, tokens: list[int], count: int) -> torch.Tensor:
    """The logits after each of the last `count` tokens, fed one by one."""
    sequence, rows = model.new_sequence(), []
    for end in range(len(tokens) - count + 1, len(tokens) + 1):
        rows.append(model.score(sequence, tokens[:end], TokenTree.chain(tokens[end - 1], ())))
        rows[-1] = rows[-1].clone()
        model.accept(sequence, [0])
    return torch.cat(rows)


def different_nodes(model: CachedModel, trees: int, *, nodes: int = 24) -> int:
    """How many nodes of random trees, after prompts fed in random pieces, have other logits than
    the same tokens in single steps. A tree is scored in two calls, the second one extends it."""
    draw, different = random.Random(1), 0
    for size in range(trees):
        prompt = prompt_of(draw.randrange(20, 32), size)
        tree = random_tree(draw, prompt[-1], draw.randrange(3, nodes), near=4)
        inside = model.new_sequence()
        for cut in sorted(draw.sample(range(1, len(prompt)), 2)):
            model.score(inside, prompt[:cut], TokenTree.chain(prompt[cut - 1], ()))
        half = draw.randrange(1, len(tree))
        first = TokenTree(tree.tokens[:half], tree.parents[:half])
        scored = [model.score(inside, prompt, first).clone()]
        rest = tree.with_logits_at(range(half, len(tree)))
        scored = torch.cat([*scored, model.score(inside, prompt, rest)])
        for leaf in set(range(len(tree))) - {*tree.parents}:
            path = tree.path_to(leaf)
            text = prompt[:-1] + [tree.tokens[node] for node in path]
            model.empty()
            singles = single_steps(model, text, len(path))
            different += sum(
                not torch.equal(single, scored[node])
                for node, single in zip(path, singles, strict=True)
            )
    return different


EVERY = list(product(NAMES, (torch.float32, torch.bfloat16)))


@pytest.mark.parametrize(
    ("name", "dtype"), mostly_slow(EVERY, quick=[EVERY[0], EVERY[5], EVERY[11]]), ids=str
)
def test_a_node_has_the_bits_of_single_steps(exact, name, dtype):
    assert different_nodes(exact(model_of(name, dtype)), 3) == 0


@pytest.mark.parametrize("how", [INTERPRETED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_a_node_has_the_bits_of_single_steps_with_the_kernels(exact, name, dtype, how):
    assert different_nodes(exact(model_of(name, dtype), how), 1, nodes=9) == 0


@pytest.mark.parametrize("how", ["reference", INTERPRETED])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_logits_are_those_of_eager_calls(exact, name, how):
    target = exact(model_of(name, torch.float32), how)
    eager = CachedModel(model_of(name, torch.float32).to(DEVICE), engine="eager")
    prompt, draw = prompt_of(25), random.Random(2)
    tree = random_tree(draw, prompt[-1], 12, near=4)
    found, right = (one.score(one.new_sequence(), prompt, tree) for one in (target, eager))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", ["reference", INTERPRETED])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_a_sequence_of_a_joint_call_has_the_bits_of_single_steps(exact, name, how):
    model, draw = exact(model_of(name, torch.float32), how), random.Random(3)
    texts = [prompt_of(length, length) for length in (3, 27, 9)]
    sizes = zip(texts, (9, 2, 5), strict=True)
    trees = [random_tree(draw, text[-1], nodes, near=4) for text, nodes in sizes]
    calls = [(model.new_sequence(), *one) for one in zip(texts, trees, strict=True)]
    joint = [rows.clone() for rows in model.score_together(calls)]
    for text, tree, rows in zip(texts, trees, joint, strict=True):
        path = tree.path_to(len(tree) - 1)
        steps = single_steps(model, text[:-1] + [tree.tokens[node] for node in path], len(path))
        assert torch.equal(steps, rows[path])


@pytest.mark.parametrize("graphs", [False, True], ids=["direct", "replayed"])
def test_a_deep_tree_of_more_rows_than_a_call_has_the_bits_of_single_steps(
    exact, monkeypatch, graphs
):
    """Its last node has more ancestors than slots in the table of one part."""
    pretend(monkeypatch)
    model, prompt = exact(model_of("llama", torch.float32), graphs=graphs), prompt_of(4)
    parents = (-1, 0, *(0 if node == 2 else node - 1 for node in range(2, 3 * ROWS)))
    tree = TokenTree((prompt[-1], *(3 + node % 9 for node in range(1, 3 * ROWS))), parents)
    path = tree.path_to(len(tree) - 1)
    assert len(path) > 2 * TAILS
    scored = model.score(model.new_sequence(), prompt, tree).clone()
    steps = single_steps(model, prompt[:-1] + [tree.tokens[node] for node in path], len(path))
    assert torch.equal(steps, scored[path])


@pytest.mark.parametrize(
    ("backend", "choose"),
    mostly_slow(product([None, "eager"], CHOICES), quick=[(None, CHOICES[1])]),
)
def test_every_decoder_writes_the_text_of_plain_decoding_by_replayed_graphs(
    exact, monkeypatch, backend, choose
):
    """In bfloat16, alone and in batches."""
    pretend(monkeypatch)
    monkeypatch.setattr("ouroboros.select._best", lambda scores: scores.argmax(-1))  # not NumPy's
    model = llama(dtype=torch.bfloat16, num_hidden_layers=2, hidden_size=32)
    draft = CachedModel(noisy(model), engine="eager")
    target, prompts = exact(model, backend=backend, graphs=True), [prompt_of(n, n) for n in (9, 2)]
    target.engine.captures_jointly = True
    plain = [decode(target, Greedy(), one, max_new=30, choose=choose).tokens for one in prompts]
    graphs = dict(target.engine._calls)
    kinds = [
        lambda: RandomDrafter(plain[0], seed=1, hit=0.7),
        lambda: Speculative(draft, gamma=4),
        lambda: Ouroboros(draft),
    ]
    for kind in kinds:
        text = decode(target, kind(), prompts[0], max_new=30, choose=choose).tokens
        assert text == plain[0]
    assert target.engine._calls == graphs and Graph.streams  # a size more would be one more
    rows = [begin(target, kinds[at](), prompts[at], max_new=30, choose=choose) for at in (0, 1)]
    for _ in together(iter(rows), 2):
        pass
    assert [row.trace.tokens for row in rows] == plain


def test_prepare_captures_every_shape_up_to_a_context(exact, monkeypatch):
    pretend(monkeypatch)
    model = llama(dtype=torch.float32, max_position_embeddings=1024)
    target = exact(model, graphs=True)
    target.prepare(200, rows=2)
    made = dict(target.engine._calls)
    assert {whole for _, whole in made} == {False, True}
    for length in (1, 190):
        text, tree = prompt_of(length), TokenTree.chain(prompt_of(length)[-1], (3, 4))
        target.score(target.new_sequence(), text, tree)
        target.score_together([(target.new_sequence(), text, tree) for _ in range(2)])
    assert target.engine._calls == made


def test_the_check_at_load_finds_each_order_that_depends_on_the_rows(exact, monkeypatch):
    """Parts, blocks and tiles that follow the number of rows; tails out of order."""
    for broken in ("attention", "product", "tails"):
        target = exact(model_of("llama", torch.float32))
        check_exact(target.engine, 40)
        attend, multiply = exact_static.exact_attention, compiled_layers.exact_product

        def split(query, key, value, table, scale, attend=attend):
            wide = int((table[..., 1] > 0).sum()) > 1
            return attend(query * (1 + 1e-6 * wide), key, value, table, scale)

        def turned(query, key, value, table, scale, attend=attend):
            table = table.clone()
            wide = (table[..., 1] - table[..., 2] > 1)[..., None]
            swapped = table[..., [*range(HEAD), HEAD + 1, HEAD, *range(HEAD + 2, table.shape[-1])]]
            return attend(query, key, value, torch.where(wide, swapped, table), scale)

        def tiled(x, weight, scale=None, bias=None, multiply=multiply):
            half = x.shape[-1] // 2 * bool(x[0, 1:].ne(x[0, -1]).any())
            left, right = x[..., :half], x[..., half:]
            out = multiply(right, weight[:, half:].contiguous(), scale, bias)
            return out + multiply(left, weight[:, :half].contiguous()) if half else out

        if broken == "product":
            monkeypatch.setattr(compiled_layers, "exact_product", tiled)
        else:
            own = split if broken == "attention" else turned
            monkeypatch.setattr(exact_static, "exact_attention", own)
        engine = ExactStatic(target.model, target._info, target.cache, backend=None)
        with pytest.raises(ValueError, match="is not exact: the logits after node"):
            check_exact(engine, 40)


@pytest.mark.parametrize(
    ("compute", "refused"),
    [
        (lambda x: x.sum(-1), False),
        (lambda x: x.sum(1), True),
        (lambda x: x.cumsum(-1), True),
        (lambda x: torch.nn.functional.silu(x), False),
        (lambda x: torch.bmm(x, x.mT), True),
        (lambda x: torch.bmm(x[..., :1], x[..., :1].mT), False),
        (lambda x: x[..., :1] @ x[..., :1].mT, False),  # rotary angles in transformers 5.17
        (lambda x: x @ x.mT, True),
        (lambda x: x[0, :, :1] @ x[0, :, :1].T, False),
        (lambda x: x[0] @ x[0].T, True),
    ],
)
def test_only_operators_that_treat_rows_alike_are_allowed(compute, refused):
    class Layer(torch.nn.Module):
        def forward(self, x):
            return compute(x)

    layer = Layer()
    operators = RowOperators(layer)
    with operators.watching():
        layer(torch.ones(1, 3, 4))
    assert bool(operators.found) is refused


def test_a_model_that_fails_the_check_is_refused(exact, monkeypatch):
    def differs(*_, **__):
        raise ValueError("the logits differ")

    exact(model_of("llama", torch.float32))
    monkeypatch.setattr(exact_static, "check_exact", differs)
    with pytest.raises(ValueError, match="the logits differ"):
        made(model_of("llama", torch.float32))


def test_an_engine_is_made_with_compiled_layers_or_without_and_a_reason(exact):
    exact(model_of("llama", torch.float32))
    cached, why = made(model_of("llama", torch.bfloat16), "eager")
    assert cached.engine.compiled.compiled and why == "" and different_nodes(cached, 1) == 0

    torch._dynamo.reset()  # else the compiled code of the first model serves the second one

    def fails(*_):
        raise RuntimeError("no compiler")

    cached, why = made(model_of("llama", torch.float32), fails)
    assert not cached.engine.compiled.compiled and "'fails' raised" in why
    assert different_nodes(cached, 1) == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt2", "c_attn computes addmm"),
        ("mixtral", "mlp.gate computes"),
        ("gpt_oss", "no s_aux"),
        ("gemma2", "no softcap"),
        ("gptj", "its attention cannot be replaced"),
        ("deepseek_v3", "the widths of its keys and values"),
    ],
)
def test_models_that_cannot_be_exact_are_refused_by_name(exact, name, reason):
    exact(llama(dtype=torch.float32))
    with pytest.raises(ValueError, match=reason):
        made(model_of(name, torch.float32))


def test_other_dtypes_and_hooked_models_are_refused(exact):
    exact(llama(dtype=torch.float32))
    with pytest.raises(ValueError, match="float64 is not supported"):
        made(llama())
    model = llama(dtype=torch.float32)
    model.lm_head.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="its modules have hooks"):
        made(model)


def test_a_model_on_a_gpu_gets_this_engine_and_what_changes_is_noticed(exact, monkeypatch):
    """A GPU by name only. New weights are followed, other modules are refused."""
    exact(llama(dtype=torch.float32))
    model = model_of("llama", torch.float32)
    target, asked = CachedModel(model, engine="eager"), []

    def make(model, info, cache):
        asked.append(info.device.type)
        return make_exact_static(model, target.engine.info, cache, None)

    monkeypatch.setattr("ouroboros.engine.model.make_exact_static", make)
    device = torch.device("cuda")
    target._demanded, target._info = True, dataclasses.replace(target._info, device=device)
    target.prepack()
    assert asked == ["cuda"] and target.exact and not target.outdated
    assert different_nodes(target, 1) == 0
    prompt = prompt_of(5)
    with torch.no_grad():
        model.lm_head.weight.neg_()
    after = decode(target, Greedy(), prompt, max_new=9).tokens
    assert after == decode(CachedModel(model, engine="eager"), Greedy(), prompt, max_new=9).tokens
    model.set_attn_implementation(exact_static.NAME)
    model.model.norm.variance_epsilon = 0.1
    with pytest.raises(ValueError, match=r"call prepack\(\)"):
        decode(target, Greedy(), prompt, max_new=9)
    assert target.outdated
    target.prepack()
    assert different_nodes(target, 1) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_node_has_the_bits_of_single_steps_on_a_gpu(name, dtype):
    model = build(config_of(name, SUPPORTED[name] | {"hidden_size": 128}), dtype=dtype).cuda()
    target = CachedModel(model, exact=True)
    assert target.engine.graphs and target.engine_reason == ""
    assert different_nodes(target, 20) == 0


@pytest.mark.skipif(not hasattr(triton_exact._attend, "params"), reason="needs compiled Triton")
def test_the_attention_kernel_is_compiled_once_for_caches_of_any_capacity(monkeypatch) -> None:
    """Triton compiles other code, which may round otherwise, if an integer becomes a multiple of 16
    or stops being one."""
    kernel, launched = triton_exact._attend, []

    class Launches:
        def __getitem__(self, grid):
            return lambda *arguments, **_: launched.append(arguments)

    monkeypatch.setattr(triton_exact, "_attend", Launches())
    monkeypatch.setattr(triton_exact, "_join", Launches())
    kinds = set()
    for capacity in (64, 65):
        pools = torch.zeros(1, 2, capacity, 24)
        table = torch.zeros(1, 1, 3, HEAD + TAILS, dtype=torch.int32)
        launched.clear()
        KERNELS[0](torch.zeros(1, 4, 3, 24), pools, pools, table, 1.0)
        free = zip(launched[0], kernel.params, strict=False)
        kinds.add(tuple(
            value % 16 == 0
            for value, param in free
            if isinstance(value, int) and not param.do_not_specialize
        ))  # fmt: skip
    assert len(kinds) == 1
