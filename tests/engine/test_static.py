"""Calls of fixed shapes give the logits of calls of exact shapes: padding has no effect."""

import random
from itertools import product
from types import SimpleNamespace

import numpy
import pytest
import torch
from ouroboros.baselines import Speculative
from pretended_cuda import Graph, pretend
from tiny import FAMILIES, RandomDrafter, Session, llama, mostly_slow, random_tree, session
from transformers import (
    GenerationConfig,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ouroboros import CachedModel, Ouroboros, Sampler, TokenTree, argmax
from ouroboros.decode import Decoding, RootOnly, begin, decode, together
from ouroboros.engine.attention import KERNEL_NAME
from ouroboros.engine.compiled_layers import CompiledLayers
from ouroboros.engine.eager import Eager
from ouroboros.engine.engine_choice import select_engine
from ouroboros.engine.static import NODES, Static
from ouroboros.engine.triton_attention import HEAD
from ouroboros.integrations.generate import token_selector

CACHE = SimpleNamespace(set_length=lambda length: None)
CHOICES = [argmax, Sampler(temperature=0.8, seed=3)]


def long_llama():
    return llama(max_position_embeddings=2048)


@pytest.mark.parametrize("choose", CHOICES, ids=["T=0", "T=0.8"])
@pytest.mark.parametrize("engine", ["eager", "static"])
@pytest.mark.parametrize("family", [*FAMILIES.values(), long_llama], ids=lambda f: f.__name__)
def test_a_roll_is_plain_decoding_with_one_wait(family, engine, choose):
    """Also where the cache grows meanwhile."""
    model, tokens = family(), [1 + i % 11 for i in range(505 if family is long_llama else 3)]
    plain, stepwise = [*tokens], session(model, engine="eager")
    state = {"sequence": stepwise.sequence, "choose": choose}
    steps = list(together([Decoding(stepwise.on, RootOnly(), plain, 20, **state)], 1))
    rolled = session(model, engine=engine)
    assert rolled.roll(tokens, 20, choose) == plain[len(tokens) :]
    assert rolled.tokens == stepwise.tokens == plain[:-1]
    assert rolled.cache.length == len(plain) - 1
    assert (rolled.calls, rolled.scored) == (len(steps), 20)


@pytest.mark.gpu
def test_graphs_replay_what_calls_would_do():
    model = llama(dtype=torch.float32, head_dim=16, num_hidden_layers=3).cuda()
    eager, static = session(model, engine="eager"), session(model)
    assert isinstance(static.engine, Static) and static.engine.graphs
    static.prepare(40)
    rng, tokens = random.Random(2), [1]
    for _ in range(60):
        tree = random_tree(rng, tokens[-1], rng.randint(1, 20)).pruned(eager.max_len - len(tokens))
        expected = eager.score(tokens, tree)
        torch.testing.assert_close(static.score(tokens, tree), expected, rtol=1e-4, atol=1e-4)
        path = tree.longest_match(expected.argmax(-1).tolist())
        for cached in (eager, static):
            cached.accept(path)
        tokens = [*tokens, *(tree.tokens[n] for n in path[1:]), int(expected[path[-1]].argmax())]
        tokens = tokens[:20] if len(tokens) > 40 else tokens
    for choose in CHOICES:
        assert static.roll(tokens, 7, choose) == eager.roll(tokens, 7, choose)


@pytest.fixture
def graphed(monkeypatch):
    """Makes a model whose calls are captured and replayed on a CPU, `torch.cuda` pretended."""
    pretend(monkeypatch)
    by_torch = "ouroboros.core.select._best", lambda scores: scores.argmax(-1)
    monkeypatch.setattr(*by_torch)

    def make(model) -> CachedModel:
        cached = CachedModel(model, engine="static")
        cached.engine.graphs = True  # type: ignore[attr-defined]
        return cached

    return make


def by_table(query, key, value, table, scale):
    """What the attention kernel returns for a table of a joint call."""
    rows = table[0, 0].long()
    slab, start, base, columns = (rows[:, at, None] for at in range(4))
    slot = torch.arange(key.shape[2]) - slab
    column, words = slot - base, rows[:, HEAD:]
    word = words.gather(1, (column.clamp_min(0) >> 5).clamp_max(words.shape[1] - 1))
    bit = (column < 0) | ((word >> (column & 31)) & 1 > 0)
    seen = (slot >= start) & (column < columns) & bit
    group = query.shape[1] // key.shape[1]
    heads = (part.repeat_interleave(group, 1) for part in (key, value))
    found = torch.nn.functional.scaled_dot_product_attention(query, *heads, seen, scale=scale)
    return found.transpose(1, 2)


@pytest.fixture
def joined(graphed, monkeypatch):
    """Makes a model whose joint calls are captured too, with the kernel's results."""
    tables = lambda *args: args[-1] is not None and args[-1].dtype == torch.int32  # noqa: E731
    monkeypatch.setattr("ouroboros.engine.attention.fits", tables)
    monkeypatch.setattr("ouroboros.engine.attention.tree_attention", by_table)

    def make(model, *, compiled: bool = False) -> CachedModel:
        model.set_attn_implementation(KERNEL_NAME)
        layers = CompiledLayers(model, backend="eager") if compiled else None
        cached = graphed(model)
        cached.engine.compiled = layers
        cached.engine.captures_jointly = True
        return cached

    return make


JOINED = long_llama, FAMILIES["mistral"], FAMILIES["gemma3"]


@pytest.mark.parametrize(
    ("family", "compiled", "choose"),
    mostly_slow(product(JOINED, (False, True), CHOICES), quick=[(long_llama, False, CHOICES[0])]),
)
def test_captured_joint_calls_give_each_text_alone(joined, monkeypatch, family, compiled, choose):
    """Ragged rows that come, go and leave their slabs to others, in one graph per size; the slabs
    and the pools grow. Neither a long prompt nor too many blocks are captured."""
    model, draft, apart = family(), llama(seed=1), []
    target, small = joined(model, compiled=compiled), joined(draft)
    eager = Eager.call

    def eagerly(engine, parts, token=None):
        if isinstance(engine, Static):
            apart.append(sum(len(layout.missing) for _, layout in parts))
        return eager(engine, parts, token)

    monkeypatch.setattr(Eager, "call", eagerly)
    assert target.why_not_together() is None and target.engine.captures_jointly
    reading = [598] * 2 if family is long_llama else []  # the long prompt, in calls of its own
    lengths = (3, 1, 20, 600 if reading else 30, 2, 9, 40, 5, 1, 7)
    prompts = [[1 + (i * 7 + n) % 11 for i in range(n)] for n in lengths]
    plain = CachedModel(family(), engine="eager")
    texts = [decode(plain, RootOnly(), one, max_new=20, choose=choose).tokens for one in prompts]

    def decoded(size: int) -> list[list[int]]:
        drafters = [RootOnly, lambda: Speculative(small, gamma=3)]
        drafters.append(lambda: RandomDrafter(texts[0], seed=size))
        rows = [
            begin(target, drafters[at % 3](), prompt, max_new=20, choose=choose)
            for at, prompt in enumerate(prompts)
        ]
        for _ in together(iter(rows), size):
            pass
        return [own.trace.tokens for own in rows]

    assert decoded(2) == decoded(9) == texts
    assert apart == reading
    assert sum(isinstance(key, int) for key in target.engine._calls) > 2
    assert target.engine.shared.count > 8 and not target.engine.shared.slabs
    monkeypatch.setattr("ouroboros.engine.triton_attention.SEQUENCES", -1)
    assert decoded(4) == texts and len(apart) > len(reading)


def test_joint_calls_that_the_kernel_does_not_support_are_made_eagerly(joined, monkeypatch):
    """And the reason is named."""
    monkeypatch.setattr("ouroboros.engine.attention.fits", lambda *_: False)
    target = joined(llama())
    assert target.why_not_together() is None and not target.engine.captures_jointly
    assert "joint calls are not captured: the attention kernel" in target.engine_reason


def test_graphs_of_a_cache_that_grew_are_made_anew(graphed, monkeypatch):
    model, made = llama(max_position_embeddings=4096), []
    eager, cached = session(model, engine="eager"), Session(graphed(model))
    record = Static._capture_call
    monkeypatch.setattr(Static, "_capture_call", lambda s, *a: made.append(a[1:]) or record(s, *a))
    for length in (3, 5, 900, 20, 1500):
        tokens = [1 + i % 11 for i in range(length)]
        tree = TokenTree((tokens[-1], 3, 4), (-1, 0, 0))
        torch.testing.assert_close(cached.score(tokens, tree), eager.score(tokens, tree))
    assert len(made) > len(set(made))  # some shapes twice, for the cache has grown


def test_prepare_captures_every_shape_up_to_a_context_and_joint_calls_of_every_size(joined):
    target = joined(llama(max_position_embeddings=2048, num_hidden_layers=1))
    target.prepare(700, rows=3)
    made, cached = dict(target.engine._calls), Session(target)
    for length in (1, 300, 690):
        for nodes in (1, 9, 60):
            tree = random_tree(random.Random(nodes), 1, nodes)
            cached.score([1] * length, tree)
    rows = [begin(target, RootOnly(), [5] * n, max_new=9) for n in (3, 60, 100)]
    assert [len(live) for live in together(iter(rows), 3)] == [3] * 9
    assert target.engine._calls == made and {*NODES} <= {*made}


@pytest.mark.parametrize("choose", CHOICES, ids=["T=0", "T=0.8"])
def test_replayed_graphs_decode_as_plain_calls_do(graphed, choose):
    """Calls and choices both, by every path of the loop; what a graph was captured with is gone."""
    model, draft = llama(num_hidden_layers=2), llama(seed=1)
    plain = decode(CachedModel(model), RootOnly(), [1, 2, 3], max_new=30, choose=choose)
    target, small = graphed(model), graphed(draft)
    for drafter in (
        RandomDrafter(plain.tokens, seed=0),
        Speculative(small, gamma=3),
        Ouroboros(small),
    ):
        trace = decode(target, drafter, [1, 2, 3], max_new=30, choose=choose)
        assert trace.tokens == plain.tokens
    assert target.engine._choices and small.engine._choices


def test_tuned_products_are_tried_first_and_dropped_with_a_reason(monkeypatch):
    """On a device that is a GPU by name only."""
    tried = []
    device = SimpleNamespace(type="cuda")
    monkeypatch.setattr("ouroboros.engine.engine_choice.Eager", lambda *_: None)
    monkeypatch.setattr("ouroboros.engine.engine_choice.Static", lambda *_, **how: how)
    monkeypatch.setattr(
        "ouroboros.engine.engine_choice.why_different",
        lambda engine, _: tried.append(engine) or ("off" if len(tried) < 2 else None),
    )
    info = SimpleNamespace(device=device)
    engine, reason = select_engine("tuned", llama(), info, CACHE)  # type: ignore[arg-type]
    assert tried == [{"products": True}, {}] and engine == {}
    assert reason == "not captured with tuned products: off"
    assert select_engine("auto", llama(), info, CACHE)[0] == {}  # type: ignore[arg-type]


def test_each_way_of_sampling_has_a_captured_choice_of_its_own(graphed):
    """As `generate` is called again with other settings, on models that it keeps."""
    model, config = llama(), GenerationConfig(do_sample=True)
    kept, eager = graphed(model), CachedModel(model, engine="eager")
    for warpers in (
        [TemperatureLogitsWarper(0.2)],
        [TemperatureLogitsWarper(5.0)],
        [TemperatureLogitsWarper(5.0), TopKLogitsWarper(3)],
        [TemperatureLogitsWarper(5.0), TopKLogitsWarper(2)],
        [TopPLogitsWarper(0.5)],
        [],
    ):
        choose = [token_selector(config, 5, warpers, 13) for _ in range(2)]
        rules = zip((kept, eager), choose, strict=True)
        found = [decode(on, RootOnly(), [1, 2, 3], max_new=30, choose=own) for on, own in rules]
        assert found[0].tokens == found[1].tokens
    assert len(kept.engine._choices) == 6 * len(NODES)


@pytest.mark.parametrize("choose", CHOICES, ids=["T=0", "T=0.8"])
def test_a_replayed_ranking_is_the_ranking(graphed, choose):
    model, rng = llama(), random.Random(4)
    eager, cached = session(model, engine="eager"), Session(graphed(model))
    for nodes in (5, 3, 5, 1, 7):
        tree = random_tree(rng, 1, nodes)
        found, wanted = (m.score([2, 1], tree) for m in (cached, eager))
        pairs = zip(*(choose.ranked(x, [2, 1], tree, 4) for x in (found, wanted)), strict=True)
        for own, right in pairs:
            numpy.testing.assert_allclose(own, right)
    assert len(cached.engine._choices) == len(NODES)
    assert len(Graph.streams) == 1


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="auto, eager, fused, static, tuned"):
        CachedModel(llama(), engine="fast")  # type: ignore[arg-type]
