"""The logits of a tree are those of each branch alone, whatever the cache contained before."""

import copy
import pickle
import random

import pytest
import torch
from ouroboros.baselines import PromptLookup
from parts import first as first_nodes
from tiny import CONTEXT, FAMILIES, SHAPE, VOCAB, Session, build, llama, plain, prompt_of, session
from transformers import DynamicCache, LlamaConfig

from ouroboros import CachedModel, TokenTree, argmax
from ouroboros.decode import RootOnly, decode
from ouroboros.engine.cache import LayerShape, SlotCache
from ouroboros.engine.eager import PREFILL_ALONE

FORK = TokenTree((5, 1, 2, 3, 4, 6), (-1, 0, 1, 0, 3, 1))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """An untouched model, and a wrapped copy that all tests of the family share."""
    model = FAMILIES[request.param]()
    return model, CachedModel(copy.deepcopy(model))


@torch.inference_mode()
def alone(model, tokens: list[int]) -> torch.Tensor:
    """The logits after the last token, from one plain pass without a cache."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def probing_tree(draw: random.Random, root: int, size: int = 8) -> TokenTree:
    parents = [-1, *(draw.randrange(node) for node in range(1, size))]
    tokens = [root, *(draw.randrange(VOCAB) for _ in parents[1:])]
    probe = frozenset(node for node in range(1, size) if draw.random() < 0.3)
    read = frozenset(node for node in probe if draw.random() < 0.5)
    return TokenTree(tuple(tokens), tuple(parents), probe, read=read)


@pytest.mark.parametrize("seed", range(6))
def test_each_node_scores_as_its_own_branch(family, seed):
    """The cache of the test before is rolled back as far as the prompts differ."""
    model, wrapped = family
    cached = Session(wrapped)
    draw = random.Random(seed)
    tokens = prompt_of(draw.choice([1, 3, 20, 40]), draw.randrange(2))
    for _ in range(4):
        tree = probing_tree(draw, tokens[-1])
        logits = cached.score(tokens, tree)
        assert logits.shape == (len(tree.logit_nodes), VOCAB)
        for row, node in zip(logits, tree.logit_nodes, strict=True):
            branch = [tree.tokens[n] for n in tree.path_to(node)[1:]]
            torch.testing.assert_close(row, alone(model, [*tokens, *branch]))
        path = tree.path_to(draw.randrange(len(tree)))
        cached.accept(path)
        tokens = [*tokens, *(tree.tokens[n] for n in path[1:]), draw.randrange(VOCAB)]
        assert cached.tokens == tokens[:-1]
        assert cached.cache.length == len(tokens) - 1


@pytest.mark.parametrize("missing", [PREFILL_ALONE - 1, PREFILL_ALONE, PREFILL_ALONE + 1, 300])
@pytest.mark.parametrize("build_model", [llama, FAMILIES["mistral"]])
def test_a_long_prompt_before_a_branching_tree(build_model, missing):
    """Beyond PREFILL_ALONE the prompt goes first, in a causal pass of its own."""
    model = build_model()
    model.config.max_position_embeddings = 512
    cached = session(copy.deepcopy(model))
    tokens = [*prompt_of(missing), 5]
    logits = cached.score(tokens, FORK)
    for node in range(len(FORK)):
        branch = [FORK.tokens[n] for n in FORK.path_to(node)[1:]]
        torch.testing.assert_close(logits[node], alone(model, [*tokens, *branch]))
    cached.accept([0, 3])
    after = cached.score([*tokens, 3, 8], TokenTree((8,), (-1,)))
    torch.testing.assert_close(after[0], alone(model, [*tokens, 3, 8]))
    assert cached.calls == 2


def test_layers_of_several_shapes_keep_their_own_slots():
    shapes = [
        LayerShape(2, 4, 4, torch.float64, torch.device("cpu")),
        LayerShape(1, 8, 2, torch.float64, torch.device("cpu")),
        LayerShape(2, 4, 4, torch.float64, torch.device("cpu")),
    ]
    cache, expected = SlotCache(shapes, capacity=2), DynamicCache()
    for index, shape in enumerate(shapes):
        keys = torch.randn(1, shape.kv_heads, 6, shape.key_width, dtype=torch.float64)
        values = torch.randn(1, shape.kv_heads, 6, shape.value_width, dtype=torch.float64)
        cache.reserve(6)
        seen = cache.update(keys, values, index)
        for ours, theirs in zip(seen, expected.update(keys, values, index), strict=True):
            assert torch.equal(ours, theirs)
    cache.keep([1, 3, 5], 1)
    cache.reserve(50)
    for layer, other in zip(cache.layers, expected.layers, strict=True):
        assert layer.get_seq_length() == 4
        assert torch.equal(layer.keys[:, :, :4], other.keys[:, :, [0, 1, 3, 5]])
        assert torch.equal(layer.values[:, :, :4], other.values[:, :, [0, 1, 3, 5]])


def test_sdpa_is_replaced_and_others_left_alone():
    grouped, single = llama(), llama(num_key_value_heads=4)
    CachedModel(grouped)
    CachedModel(single)
    for model in (grouped, single):
        assert model.config._attn_implementation == "ouroboros_packed"
    eager = llama()
    eager.set_attn_implementation("eager")
    cached = session(eager)
    assert eager.config._attn_implementation == "eager"
    logits = cached.score([7, 5], FORK)  # eager attention takes its softmax in float32
    packed = session(grouped).score([7, 5], FORK)
    torch.testing.assert_close(logits, packed, rtol=1e-4, atol=1e-4)


def test_the_context_may_be_lowered_but_not_raised():
    assert CachedModel(llama(), max_len=10_000).max_len == CachedModel(llama()).max_len == CONTEXT
    with pytest.raises(ValueError, match="max_len is 0"):
        CachedModel(llama(), max_len=0)
    with pytest.raises(ValueError, match="reach position 5, beyond the model's 4"):
        session(llama(), max_len=4).score([1, 2, 5], FORK)


def test_roots_paths_counts_and_limits_out_of_range_are_refused():
    cached = session(llama())
    with pytest.raises(ValueError, match=r"root is .* root the tree at tokens"):
        cached.score([1, 2], FORK)
    cached.score([1, 2, 5], FORK)
    for path in ([], [1], [0, len(FORK) - 1, 1], [0, 99], [0, -1]):
        with pytest.raises(ValueError, match=r"is no path of the tree last scored"):
            cached.accept(path)
    cached.accept([0])
    with pytest.raises(ValueError, match="is no path"):
        cached.accept([0])
    with pytest.raises(ValueError, match="count is 0; choose at least 1"):
        cached.roll([1, 2, 5], 0, argmax)
    cached.on.prefill_limit = 0
    with pytest.raises(ValueError, match="prefill_limit is 0; choose at least 1"):
        cached.score([1, 2, 5, 4], TokenTree.chain(4, ()))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_wrapper_is_not_copied(way):
    with pytest.raises(TypeError, match="cannot be copied or pickled: copy its model"):
        way(CachedModel(llama()))


ROPE = {"rope_theta": 10000.0, "factor": 4.0}
FACTORS = {"short_factor": [1.0, 2.0], "long_factor": [8.0, 9.0]}
SCALED = [  # the parameters of RoPE, the config's number of positions, the number of usable ones
    ({"rope_type": "linear"}, CONTEXT, 4 * CONTEXT),
    ({"rope_type": "yarn"}, CONTEXT, 4 * CONTEXT),
    ({"rope_type": "yarn", "original_max_position_embeddings": 8}, CONTEXT, CONTEXT),
    ({"rope_type": "dynamic"}, CONTEXT, CONTEXT),
    ({"rope_type": "longrope", "original_max_position_embeddings": CONTEXT, **FACTORS}, 128, 64),
]


@pytest.mark.parametrize(("rope", "positions", "usable"), SCALED, ids=str)
def test_scaled_positions_hold_up_to_the_last_one(rope, positions, usable):
    """Beyond the original positions, dynamic RoPE depends on calls before, and LongRoPE scales
    every position anew: both end there."""
    shape = {**SHAPE, "max_position_embeddings": positions}
    model = build(LlamaConfig(**shape, rope_parameters=ROPE | rope))
    cached, prompt = CachedModel(copy.deepcopy(model)), prompt_of(usable - 30)
    assert cached.max_len == usable
    expected = plain(model, prompt, 30)
    for drafter in (RootOnly(), PromptLookup(max_ngram_size=2, num_tokens=5)):
        trace = decode(cached, drafter, prompt, max_new=200)
        assert trace.tokens[:usable] == expected and len(trace.tokens) == usable + 1


@pytest.mark.parametrize(
    ("dtype", "value", "remedy"),
    [
        (torch.float16, 6e4, "its activations overflow: load it in bfloat16 or float32"),
        (torch.float32, float("nan"), "its weights are damaged: copy or download them again"),
    ],
)
def test_logits_that_are_no_numbers_are_named(dtype, value, remedy):
    model = llama().to(dtype)
    with torch.no_grad():
        model.model.norm.weight.fill_(value)
    with pytest.raises(ValueError, match=f"NaN or infinite logits in {dtype}, {remedy}"):
        CachedModel(model)


def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="cannot load") as refusal:
        CachedModel.from_pretrained(str(tmp_path))
    assert "\n" not in str(refusal.value) and str(tmp_path) in str(refusal.value)
    assert "no such folder" not in str(refusal.value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafts").mkdir()
    for name in (str(tmp_path / "none"), "./none", "~/none", "drafts/none"):
        with pytest.raises(ValueError, match=f"cannot load '{name}': there is no such folder"):
            CachedModel.from_pretrained(name)


def test_a_failed_call_leaves_no_false_claim_about_the_cache(monkeypatch):
    model = llama()
    cached = CachedModel(copy.deepcopy(model))
    first, second = prompt_of(20, 1), [*prompt_of(5, 1), *prompt_of(15, 2)]
    wanted, call = decode(cached, RootOnly(), first, max_new=8).tokens, cached.engine.call

    def fail(*args):
        call(*args)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(cached.engine, "call", fail)
        decode(cached, RootOnly(), second, max_new=8)
    assert decode(cached, RootOnly(), first, max_new=8).tokens == wanted


def test_a_sequence_takes_the_slots_over_and_reuses_a_shared_prefix():
    """Two sequences on one model in turn: each is right, and only what differs is fed again."""
    model = llama()
    cached = CachedModel(copy.deepcopy(model))
    first, second = cached.new_sequence(), cached.new_sequence()
    for tokens, sequence, fed in (
        ([1, 2, 3, 4, 5], first, 4),
        ([1, 2, 3, 9, 5], second, 1),
        ([1, 2, 3, 4, 5], first, 1),
        ([1, 2, 3, 4, 5], first, 0),
    ):
        before = sequence.caught_up
        logits = cached.score(sequence, tokens, FORK)
        torch.testing.assert_close(logits[0], alone(model, tokens))
        assert sequence.caught_up - before == fed
        assert (
            sequence.tokens == tokens[:-1]
            and (first if sequence is second else second).tokens == []
        )
    with pytest.raises(ValueError, match="another sequence was scored in between"):
        cached.accept(second, [0])
    cached.empty()
    assert first.tokens == [] and first.counters.calls == 3
    assert cached.new_sequence().counters.calls == 0
    sequence = cached.new_sequence(cached=[4, 3, 2])
    cached.score(sequence, [4, 3, 2, 5], FORK)
    assert sequence.caught_up == 0, "what is taken to be cached is not fed"
    logits = cached.score(cached.new_sequence(), [4, 3, 2, 5], FORK)
    torch.testing.assert_close(logits[0], alone(model, [4, 3, 2, 5]))


@pytest.mark.parametrize("engine", ["eager", "static"])
def test_what_was_not_scored_last_is_fed_again(engine):
    """Another sequence, other first nodes, an accepted path, a roll, a cache made ready."""
    model, tree = llama(), TokenTree((5, 1, 2, 3, 4), (-1, 0, 1, 0, 3))
    expected = session(model).score([3, 4, 5], tree).clone()
    cached = session(model, engine=engine)

    def go_on(fed: int) -> None:
        before = cached.scored
        logits = cached.score([3, 4, 5], tree.with_logits_at([3, 4]))
        torch.testing.assert_close(logits, expected[3:], rtol=0, atol=1e-12)
        assert cached.scored - before == fed

    start = first_nodes(tree, 3)
    go_on(5)
    go_on(2)
    cached.score([3, 4, 5], start)
    go_on(2)
    cached.score([3, 9, 5], start)
    go_on(5)
    cached.score([3, 4, 5], TokenTree((5, 1, 9), (-1, 0, 1)))
    go_on(3)
    cached.score([3, 4, 5], TokenTree((5, 1, 2), (-1, 0, 0)))
    go_on(3)
    cached.score([3, 4, 5], start)
    cached.accept([0])
    go_on(5)
    cached.roll([3, 4, 5], 3, argmax)
    go_on(5)
    cached.score([3, 4, 5, 5], TokenTree((5, 1), (-1, 0)))
    go_on(5)
    cached.prepare(10)
    go_on(5)
