"""Tiny random models and drafters: a vocabulary so small that wrong drafts are often right.

Weights are large, so that the most probable token is decisive and greedy text does not settle in a
loop of one token: a mistake in a mask, a position or a slot changes the text.
"""

import copy
import random
from collections.abc import Callable, Sequence

import torch
from quick import mostly_slow as mostly_slow
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ouroboros import CachedModel, Ouroboros, OuroborosPaper, TokenTree, baselines
from ouroboros.core.select import TokenSelector
from ouroboros.decode import Drafter, RootOnly
from ouroboros.engine.sequence import CachedSequence, TreeModel

VOCAB = 13
CONTEXT = 64
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
SIZES = {"window_size": 3, "ngram_size": 4, "verification_set_size": 3}  # of lookahead decoding
DRAFTERS: dict[str, Callable[[CachedModel], Drafter]] = {
    "greedy": lambda draft: baselines.Greedy(),
    "lookahead": lambda draft: baselines.Lookahead(**SIZES),
    "prompt_lookup": lambda draft: baselines.PromptLookup(max_ngram_size=2, num_tokens=4),
    "speculative": lambda draft: baselines.Speculative(draft, gamma=4),
    "confident": lambda draft: baselines.Speculative(draft, gamma=4, confidence=0.3),
    "hybrid": lambda draft: baselines.SuffixDecoding(draft, max_tokens=6, gamma=3, threshold=3),
    "recycling": lambda draft: baselines.TokenRecycling(nodes=12),
    "ouroboros": lambda draft: Ouroboros(draft, max_nodes=12, adapt=False),
    "ouroboros_paper": lambda draft: OuroborosPaper(draft, gamma=4, topk=2, **SIZES),
}
"""Drafters of each kind, whose drafts do not depend on the time."""


def build(config, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A random model that ends at no token. Matrices have standard deviation 0.4; vectors (norms,
    biases) differ from each other."""
    torch.manual_seed(seed)
    experts = {"experts_implementation": "eager"}  # grouped kernels know no float64
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, **experts).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=0.4)
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn(weight.shape).to(weight), alpha=0.2)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def llama(seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> PreTrainedModel:
    """Grouped queries, rotary positions, one layer unless `changes` say otherwise."""
    shape = {**SHAPE, "num_hidden_layers": 1, **changes}
    return build(LlamaConfig(**shape), seed=seed, dtype=dtype)


def gpt2(seed: int = 0) -> PreTrainedModel:
    """Learned positions: nothing at all exists beyond the context."""
    shape = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_positions": CONTEXT}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return build(GPT2Config(**shape, **ids), seed=seed)


def mistral(seed: int = 0, window: int = 8) -> PreTrainedModel:
    """Every layer sees only the last `window` positions."""
    return build(MistralConfig(**SHAPE, sliding_window=window), seed=seed)


def gemma3(seed: int = 0, window: int = 8) -> PreTrainedModel:
    """A sliding layer below a full one."""
    types = ["sliding_attention", "full_attention"]
    return build(Gemma3TextConfig(**SHAPE, sliding_window=window, layer_types=types), seed=seed)


FAMILIES = {"llama": llama, "gpt2": gpt2, "mistral": mistral, "gemma3": gemma3}


def random_tree(draw: random.Random, root: int, nodes: int, *, near: int = 99) -> TokenTree:
    """Random tokens below `root`, each the child of one of the `near` nodes before it."""
    parents = (-1, *(draw.randrange(max(0, node - near), node) for node in range(1, nodes)))
    return TokenTree((root, *(draw.randrange(VOCAB) for _ in parents[1:])), parents)


class Session:
    """A model and one sequence on it: `session.score(tokens, tree)`, `session.scored`."""

    def __init__(self, model: CachedModel) -> None:
        self.on = model
        self.sequence = model.new_sequence()

    def score(self, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        return self.on.score(self.sequence, tokens, tree)

    def accept(self, path: Sequence[int]) -> None:
        self.on.accept(self.sequence, path)

    def roll(self, tokens: Sequence[int], count: int, choose: TokenSelector) -> list[int]:
        return self.on.roll(self.sequence, tokens, count, choose)

    def __getattr__(self, name: str):
        """The counters and tokens of the sequence, and what else the model has."""
        return getattr(self.sequence if hasattr(self.sequence, name) else self.on, name)


def by_modules(model: PreTrainedModel, **options) -> CachedModel:
    """A wrapped model that is called by its modules: for tests of decoders, not of engines."""
    return CachedModel(model, engine="eager", **options)


def session(model: PreTrainedModel, **options) -> Session:
    """A wrapped model with a new sequence."""
    return Session(CachedModel(model, **options))


def prompt_of(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """Random ids other than the special ones."""
    draw = random.Random(f"prompt-{seed}-{length}")
    return [draw.randrange(3, vocab) for _ in range(length)]


def plain(model: PreTrainedModel, prompt: Sequence[int], max_new: int, **options) -> list[int]:
    """What transformers' own greedy loop returns, prompt included, on a copy of the model."""
    ids = torch.tensor([list(prompt)])
    rule = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_new, "do_sample": False}
    return copy.deepcopy(model).generate(ids, **rule, **options)[0].tolist()


def cut(tokens: Sequence[int], prompt_len: int, max_new: int, eos=()) -> list[int]:
    """The same text under an earlier end: the first id of `eos`, or `max_new` tokens."""
    kept = list(tokens[:prompt_len])
    for token in tokens[prompt_len : prompt_len + max_new]:
        kept.append(token)
        if token in eos:
            break
    return kept


class RandomDrafter(RootOnly):
    """Proposes random trees, some with probes, with siblings of equal tokens, and with nodes deeper
    than the budget; counts them, and the deepest acceptance.

    `truth` has the tokens of standard decoding, prompt included. Each node gets the right token
    with probability `hit`, so deep acceptance, ends of sequence inside a draft and wrong branches
    all occur.
    """

    trees = deepest = 0

    def __init__(
        self, truth: Sequence[int], *, seed: int, vocab: int = VOCAB, hit: float = 0.6
    ) -> None:
        self.truth, self.vocab, self.hit = truth, vocab, hit
        self.draw = random.Random(f"drafter-{seed}")

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        self.trees += 1
        draw, nodes, parents, depths = self.draw, [tokens[-1]], [-1], [0]
        for _ in range(draw.randrange(11)):
            parent = len(nodes) - 1 if draw.random() < 0.6 else draw.randrange(len(nodes))
            position = len(tokens) + depths[parent]
            honest = position < len(self.truth) and draw.random() < self.hit
            nodes.append(self.truth[position] if honest else draw.randrange(self.vocab))
            parents.append(parent)
            depths.append(depths[parent] + 1)
        rate = draw.choice([0, 0, 0.2, 1])
        probes = frozenset(n for n in range(1, len(nodes)) if draw.random() < rate)
        read = frozenset(n for n in probes if draw.random() < 0.5)
        return TokenTree(tuple(nodes), tuple(parents), probes, read=read)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        assert len(chosen) == len(tree) and not tree.probe & set(path)
        self.deepest = max(self.deepest, len(path) - 1)


def noisy(model: PreTrainedModel, *, noise: float = 0.03, seed: int = 1) -> PreTrainedModel:
    """A draft: the model's own weights, a little off, so that it is often but not always right."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in draft.parameters():
            step = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(noise * step)
    return draft


class StepLog:
    """A drafter that remembers every tree, what was chosen there and which path was accepted."""

    def __init__(self, drafter) -> None:
        self.drafter = drafter
        self.steps: list[tuple[list[int], int, TokenTree, list[int], list[int]]] = []

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        self._asked = list(tokens), budget
        return self.drafter.propose(tokens, budget)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        self.steps.append((*self._asked, tree, list(chosen), list(path)))
        self.drafter.observe(tree, chosen, path)


class TableModel(TreeModel):
    """A model that is a table of its last two tokens: as a `CachedModel`, but in microseconds."""

    max_len = CONTEXT
    tokenizer = None

    def __init__(self, vocab: int, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = 1.5 * torch.randn(vocab, vocab, vocab, generator=generator)
        self.width = self.vocab_size = vocab

    def row(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits that follow `tokens`, [width]."""
        return self.table[tokens[-2], tokens[-1], : self.width]

    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        before = list(tokens[:-1])
        paths = [[tree.tokens[n] for n in tree.path_to(node)] for node in tree.logit_nodes]
        sequence.calls += 1
        sequence.forwards += 1
        sequence.scored += len(tree)
        return torch.stack([self.row(before + path) for path in paths])


def tokenizer(count: int, **renamed: int) -> PreTrainedTokenizerFast:
    """Ids 0 ... count - 1 as words w0, w1, ...; `renamed` gives an id another word."""
    words = {f"w{i}": i for i in range(count) if i not in renamed.values()} | renamed
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")))
