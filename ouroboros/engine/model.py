"""A Hugging Face causal LM, wrapped to score token trees with a KV cache.

Invariant: after `accept`, the cache holds every token of the sequence except the last. Prefill,
rollback, catch-up after a full acceptance and reuse of a shared prompt are one code path: uncached
tokens of the sequence are fed before the tree, in the same call. A tree may be scored over several
calls: until a path is accepted, scored nodes stay cached for descendants that are added later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ouroboros.core.select import TokenSelector, token_ids
from ouroboros.core.tree import ROOT, TokenTree
from ouroboros.engine.attention import KERNEL_NAME, attention_of, use_packed_attention
from ouroboros.engine.cache import SlotCache
from ouroboros.engine.eager import MOST_HELD, Eager, Part
from ouroboros.engine.engine_choice import EngineName, select_engine
from ouroboros.engine.frozen import Frozen, is_hooked
from ouroboros.engine.fused import Fused
from ouroboros.engine.head import DraftHead, listed_ids, trim_head
from ouroboros.engine.loading import check_folder, check_round_trip, of_tokenizer, why_not_loaded
from ouroboros.engine.masks import Layout
from ouroboros.engine.quantised import quantise
from ouroboros.engine.sequence import CachedSequence, Call, TreeModel
from ouroboros.engine.support import check_tree_support
from ouroboros.engine.trial import why_not_jointly


def one_at_a_time(call: Callable) -> Callable:
    """Run a method in inference mode; raise `ValueError` if another thread is calling the model."""

    @wraps(call)
    def claimed(self, *args):
        if not self.lock.acquire(blocking=False):
            raise ValueError(
                "another thread is using this model: call generate, in which threads take turns, "
                "or give each thread a CachedModel of a copy"
            )
        try:
            with torch.inference_mode():
                return call(self, *args)
        finally:
            self.lock.release()

    return claimed


class CachedModel(TreeModel):
    """A causal LM that scores token trees.

    It takes the model over: weights, modules, hooks and attention are read now. If they change
    afterwards, call `refresh`.

    The state of a sequence is a `CachedSequence`, returned by `new_sequence` and passed to each
    call. The model has one set of cache slots, which holds the sequence that was scored last; a
    prefix that the next sequence shares with it is not fed again. `score_all` gives each
    sequence separate cache slots, which the sequence keeps.

    `engine` is one of:

    - "auto": on a GPU "static" if the model can be captured, else "eager", with the reason in
      `engine_reason`; on a CPU "fused" if possible and faster, else "eager" with packed weights if
      these are faster
    - "static": pad calls to fixed shapes and, on a GPU, replay them as CUDA graphs
    - "tuned": on a GPU "auto" with the kernels of `ouroboros.engine.triton_products`; on a CPU
      "eager"
    - "fused": on a CPU, run a Llama-like model by kernels (see `ouroboros.engine.fused`) without
      timing them first; else "eager"
    - "eager": call the transformers model directly

    A model with hooks is called eagerly. `max_len` limits the number of positions (None: the
    model's limit). A draft model reads at most the last `prefill_limit` tokens of a new prompt
    (None: all). With `draft_head`, a draft model scores only these ids, or this many (see
    `ouroboros.engine.head`), which `head` then lists; `model` is a copy with the trimmed head, and
    `untrimmed` the given model.

    Raises `ValueError` with the reason if the architecture cannot score trees.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer=None,
        max_len: int | None = None,
        engine: EngineName = "auto",
        draft_head: int | Sequence[int] | None = None,
    ) -> None:
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len is {max_len}; choose at least 1, or None")
        self.model: Any = model
        self.tokenizer = tokenizer
        self._whole: PreTrainedModel | None = None
        self._options = max_len, engine, draft_head
        self.lock = threading.RLock()
        self.refresh()

    def refresh(self) -> None:
        """Read the model again after it has changed: empty the cache, choose the engine, pack the
        weights and discard captured graphs. Errors are those of the class."""
        most, engine, head = self._options
        self.model, self.head = self.untrimmed.eval(), None
        if head is not None:
            self._whole = self.model
            self.model, self.head = trim_head(self.model, head, self.tokenizer)
        self.attention_reason = use_packed_attention(self.model)
        info = check_tree_support(self.model)
        self.max_len = min(most or info.max_len, info.max_len)
        self.vocab_size = info.vocab_size
        self.width = info.vocab_size  # number of logits returned per node; may be lowered
        self.masked: torch.Tensor | None = None  # ids that a draft must not propose
        self.device, self.dtype = info.device, info.dtype
        self.cache = SlotCache(info.layers)
        self.resident = CachedSequence()  # the sequence that the slots belong to
        self._together: str | None = None  # why joint calls are impossible; "" if possible
        self.engine: Eager
        self.engine, self.engine_reason = select_engine(engine, self.model, info, self.cache)
        self.attention, self._hooked = attention_of(self.model), is_hooked(self.model)
        self._frozen = Frozen(self.untrimmed.modules())

    def __reduce__(self) -> tuple:  # a shallow copy would write to the same cache slots
        raise TypeError("a CachedModel cannot be copied or pickled: copy its model and wrap that")

    @property
    def untrimmed(self) -> PreTrainedModel:
        """The transformers model with its whole head."""
        return self._whole or self.model

    @property
    def exact(self) -> bool:
        """Whether a token's logits are bitwise identical in every call."""
        return isinstance(self.engine, Fused)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | None = None,
        max_len: int | None = None,
        engine: EngineName = "auto",
        draft_head: DraftHead = None,
        **options,
    ) -> CachedModel:
        """Load a model and its tokenizer from a hub id or a folder. `options` (device_map,
        quantization_config, revision, ...) are passed to transformers' `from_pretrained`, except
        quantization_config="int8" or "auto" (see `quantise`). For `max_len` and `engine`, see the
        class. If `draft_head` is a number, the draft scores that many of the first ids in the
        model's head_ids.json, if it has this file; "auto": all ids of the file, without it all.

        A model that transformers quantises is loaded directly to `device`, because it cannot be
        moved later. Raises `ValueError` if loading fails or the tokenizer loses characters.
        """
        check_folder(name_or_path)
        head: dict = {"draft_head": listed_ids(name_or_path, draft_head, options)}
        own = isinstance(options.get("quantization_config"), str)
        quantization = options.pop("quantization_config") if own else None
        if options.get("quantization_config") is not None and device is not None:
            options = {"device_map": {"": device}, **options}
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path, **of_tokenizer(options))
            dtype = options.pop("torch_dtype", dtype) if dtype == "auto" else dtype
            model = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype, **options)
        except Exception as error:  # torch, safetensors and tokenizers raise many kinds
            reason = why_not_loaded(name_or_path, error)
            raise ValueError(f"cannot load {name_or_path!r}: {reason}") from error
        check_round_trip(tokenizer, name_or_path)
        if device is not None and model.device.type != torch.device(device).type:
            model.to(device)  # type: ignore[arg-type]
        if quantization:
            model = quantise(model, quantization)  # type: ignore[assignment]
        return cls(model, tokenizer=tokenizer, max_len=max_len, engine=engine, **head)

    def new_sequence(self, cached: Sequence[int] = ()) -> CachedSequence:
        """Return the state of a new sequence. Raises `ModelChanged` if the model has changed since
        it was read (see `ouroboros.engine.frozen`). Empties the cache if the model has hooks, whose
        effects may vary.

        To time calls without a prefill, pass `cached` tokens: they count as cached although nothing
        is fed, and their slots have arbitrary content.
        """
        return self._begun(CachedSequence(tokens=list(cached)))

    def _begun(self, sequence):
        """Check the model; give its cache slots to `sequence` if that starts with cached tokens.
        Return the sequence."""
        self._frozen.check()
        if sequence.tokens or self._hooked:
            self.empty()
        if sequence.tokens:
            self.resident, sequence.unfed = sequence, True
        return sequence

    def empty(self) -> None:
        """Empty the cache, so that the next sequence is fed from its first token."""
        self.resident.clear()

    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Return the logits after the tree's `logit_nodes`, [len(tree.logit_nodes), width], and
        write the tree to the cache. `width` is the vocabulary size; for a draft model, at most the
        target's. Logits of `masked` ids are -inf. A trimmed head has fewer columns, whose ids are
        in the attribute `head` of the logits (`core.select.Head`).

        `tokens` is the whole sequence; its last token is the tree's root. Ids beyond this model's
        vocabulary, which only draft models meet, are fed as id 0. The logits are valid until the
        next call; their attribute `choosing` is `Eager.choosing`.

        To extend the last tree, pass `tree.with_logits_at(new)`: nodes before the first new one are
        reused, not fed again, if no path was accepted in between.

        Raises `ValueError` if the tree's root is not the last token, or if the tree exceeds the
        context.
        """
        rows = self._score([(sequence, tokens, tree)])[0]
        rows.choosing = self.engine.choosing  # type: ignore[attr-defined]
        return rows

    def score_all(self, calls: Sequence[Call]) -> list[torch.Tensor]:
        """Return the result of `score` for several sequences from one call of the model. Long
        prompts are fed before, in separate calls.

        Each sequence gets separate cache slots and keeps them. Raises `ValueError` if the model
        cannot do this (see `why_not_together`).
        """
        if reason := self.why_not_together():
            raise ValueError(f"{type(self.model).__name__} scores one sequence at a time: {reason}")
        for sequence, _, _ in calls:
            if sequence.slots is None:
                if sequence is self.resident:
                    self.resident = CachedSequence()
                sequence.clear()
                sequence.slots = self.engine.new_slots()
        return self._score(calls)

    @one_at_a_time
    def _score(self, calls: Sequence[Call]) -> list[torch.Tensor]:
        started, engine = time.perf_counter(), self.engine
        layouts, parts, passes = list[Layout](), list[Part](), list[int]()
        for sequence, tokens, tree in calls:
            if sequence.slots is None:
                self._give_slots(sequence)
            tokens = self._read(sequence, tokens, tree)
            known = sequence.shared_prefix(tokens)
            missing = list(tokens[known:-1])
            held = 0 if missing else sequence.reusable_nodes(known, tree, MOST_HELD)
            del sequence.tokens[known:]  # remains correct if the call fails
            sequence.tree = None
            layouts.append(Layout(known, missing, tree, held))
            before = engine.forwards
            slots = self.cache if sequence.slots is None else sequence.slots
            parts.append(engine.feed_prompt((slots, layouts[-1])))
            passes.append(1 + engine.forwards - before)
        logits = engine.call(parts)
        seconds = (time.perf_counter() - started) / len(calls)
        for (sequence, _, _), layout, forwards in zip(calls, layouts, passes, strict=True):
            sequence.tokens += layout.missing
            sequence.tree, sequence.base = layout.tree, layout.base + len(layout.missing)
            sequence.calls += 1
            sequence.forwards += forwards
            sequence.scored += len(layout.tree) - layout.held
            sequence.caught_up += len(layout.missing)
            sequence.busy_s += seconds
        return [self._columns(rows) for rows in logits]

    def _columns(self, logits: torch.Tensor) -> torch.Tensor:
        """Return an engine's logits without ids of `width` and more, labelled with their `head`.
        Masks ids in place, where a captured token selection reads them."""
        if (head := self.head) is None:
            rows = logits if logits.shape[1] == self.width else logits[:, : self.width]
            return rows if self.masked is None else rows.index_fill_(1, self.masked, -torch.inf)
        if self.width < head.reach:
            head = head.below(self.width)
        columns = len(head.ids) - 1
        rows = logits if logits.shape[1] == columns else logits[:, :columns]
        if self.masked is not None:
            rows.masked_fill_(torch.isin(head.ids[:-1], self.masked), -torch.inf)
        rows.head = head  # type: ignore[attr-defined]
        return rows

    def why_not_together(self) -> str | None:
        """Return why this model cannot score several sequences in one call; None if it can.
        The first call tests it on trees of two sequences; the result is cached."""
        if self._together is None:
            self._together = why_not_jointly(self.engine)
            if self._together and self.engine.captures_jointly:
                reasons = [self.engine_reason, f"joint calls are not captured: {self._together}"]
                self.engine_reason = "; ".join(filter(None, reasons))
                self.engine.captures_jointly = False
                self._together = why_not_jointly(self.engine)
            self.empty()
        return self._together or None

    def _read(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> Sequence[int]:
        """Return the part of `tokens` that the model reads, from index `first_read(...)` on; store
        this index in `sequence.start`.

        Raises `ValueError` if the tree is not rooted at the last token, or reaches beyond the
        model's context length.
        """
        if tokens[-1] != tree.tokens[0]:
            raise ValueError(
                f"the tree's root is {tree.tokens[0]}, the sequence's last token {tokens[-1]}: "
                "root the tree at tokens[-1]"
            )
        sequence.start = self.first_read(sequence, tokens)
        tokens = tokens[sequence.start :] if sequence.start else tokens
        reach = len(tokens) + len(tree) - 1
        if reach > self.max_len:  # the tree may branch
            reach = len(tokens) + int(tree.depths().max())
        if reach > self.max_len:
            raise ValueError(
                f"the sequence and its draft reach position {reach}, beyond the model's "
                f"{self.max_len}: shorten the prompt or max_new"
            )
        return tokens

    def accept(self, sequence: CachedSequence, path: Sequence[int]) -> None:
        """Keep the path (node indices, root first) of the tree last scored; drop its other nodes.
        Raises `ValueError` if another sequence was scored in between, or if `path` is no path of
        that tree.

        The token that the model chose after the path is the next root; it is not cached yet.
        """
        tree, own = sequence.tree, sequence.slots is not None
        if not own and sequence is not self.resident:
            raise ValueError(
                "another sequence was scored in between: accept a path before the next call, or "
                "score several sequences with score_all"
            )
        if tree is None or list(path) not in [
            tree.path_to(node) for node in path[-1:] if node < len(tree)
        ]:
            raise ValueError(
                f"path={list(path)} is no path of the tree last scored: give node indices from the "
                "root (0) down, once after each score"
            )
        slots = self.cache if sequence.slots is None else sequence.slots
        slots.keep([sequence.base + node for node in path], sequence.base)
        sequence.tokens += [tree.tokens[node] for node in path]
        sequence.tree = None

    @one_at_a_time
    def roll(
        self, sequence: CachedSequence, tokens: Sequence[int], count: int, choose: TokenSelector
    ) -> list[int]:
        """Return the next `count` tokens of standard decoding after `tokens`, with one call per
        token and one device-to-host copy in total. Afterwards all but the last are cached.

        `choose` must be context-free (see `TokenSelector`): each choice is fed on the device
        before the host knows it.
        """
        if count < 1:
            raise ValueError(f"count is {count}; choose at least 1")
        if sequence.slots is not None:
            return super().roll(sequence, tokens, count, choose)
        (logits,) = self._score([(sequence, tokens, TokenTree.chain(tokens[-1], ()))])
        started, forwards = time.perf_counter(), self.engine.forwards
        self.accept(sequence, [0])
        drawn = [token_ids(choose.scores(logits, tokens, ROOT).argmax(-1), logits)]
        for at in range(len(tokens), len(tokens) + count - 1):
            part = self.cache, Layout(at - sequence.start, [], ROOT)
            logits = self._columns(self.engine.call([part], drawn[-1])[0])
            scores = choose.scores(logits, range(at + 1), ROOT)
            drawn.append(token_ids(scores.argmax(-1), logits))
        handed_over = time.perf_counter()
        self.cache.set_length(len(tokens) - sequence.start + count - 1)
        new = torch.cat(drawn).tolist()
        sequence.tokens += new[:-1]
        ended = time.perf_counter()
        sequence.calls += count - 1
        sequence.forwards += self.engine.forwards - forwards
        sequence.scored += count - 1
        sequence.busy_s += ended - started
        sequence.wait_s += ended - handed_over
        return new

    @torch.inference_mode()
    def prepare(self, context: int, rows: int = 1) -> None:
        """Empty the cache and warm up for calls on up to `context` tokens, of up to `rows`
        sequences: allocate cache slots and, on a GPU, capture the calls as CUDA graphs."""
        if rows > 1:
            self.why_not_together()
        self.empty()
        self.cache.set_length(0)
        self.engine.prepare(min(context, self.max_len), rows)

    def describe_engine(self) -> dict[str, object]:
        """Return a description of the engine for run.json:

        - "engine": the engine's class in lower case, such as "static"
        - "exact": whether a token's logits are bitwise identical in every call
        - "captured", "compiled": whether calls are captured and decoder layers compiled
        - "attention": the name of the attention implementation
        - "head": the number of ids of a trimmed head
        - "fallback": why calls are not captured with compiled layers and our attention kernel on a
          GPU, or not run by kernels on a CPU; None if they are
        """
        captured = getattr(self.engine, "graphs", False)
        compiled = bool(getattr(getattr(self.engine, "compiled", None), "compiled", None))
        reasons = [self.engine_reason]
        if self.device.type == "cuda":
            slow = "" if captured and compiled else "not captured with compiled layers"
            reasons = [self.engine_reason or slow]
            if self.attention != KERNEL_NAME:
                reasons.append(f"attention is {self.attention}: {self.attention_reason}")
        return {
            "engine": type(self.engine).__name__.lower(),
            "exact": self.exact,
            "captured": captured,
            "compiled": compiled,
            "attention": self.attention,
            **({} if self.head is None else {"head": len(self.head.ids) - 1}),
            "fallback": "; ".join(filter(None, reasons)) or None,
        }

    def _give_slots(self, sequence: CachedSequence) -> None:
        """Give the model's cache slots to a sequence, with the tokens cached there."""
        if sequence is not self.resident:
            if self.resident.unfed:
                self.empty()
            sequence.take_over(self.resident)
            self.resident = sequence
            if self.prefill_limit:
                sequence.clear()  # the cached tokens may start elsewhere in another prompt
