"""Decode one prompt and show the source of each token: `ouroboros generate`.

On a terminal, drafted text is coloured by its source, as on a report's page; elsewhere it is plain.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from ouroboros.bench.report.style import SOURCES
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import load_costs
from ouroboros.bench.run.loop import WARM_UP, WARM_UP_TOKENS
from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.run.run import build
from ouroboros.bench.tasks.dataset import BUNDLED
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.cli.options import GenerateOptions
from ouroboros.core.detokenizer import Detokenizer
from ouroboros.core.trace import first_mismatch
from ouroboros.decode import Drafter, DrafterCapabilities, stream
from ouroboros.decoder_factory import decoder_config
from ouroboros.engine.model import CachedModel

DRAFTED = {
    source: mark.colour
    for source, (mark, _) in SOURCES.items()
    if source not in ("target", "correction", "bonus")
}
"""The colours of draft tokens, by source."""
CONTROL = re.compile(r"[^\S\n\t ]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
GAP = 3  # columns between two texts
Piece = tuple[str, str]
"""A piece of text and the source of its last token: one of `StepRecord.sources`, or "given"."""


class Runner:
    """One decoder on one prompt, with its text so far. `seconds` counts only the time in `step`, so
    decoders that take turns are timed separately. `options` are those of `decode.stream`."""

    def __init__(
        self, name: str, target: CachedModel, drafter: Drafter, prompt: Sequence[int], **options
    ) -> None:
        self.name, self.target, self.eos = name, target, options.get("eos", ())
        self.tokens: list[int] = []
        self.pieces: list[Piece] = []
        self.calls, self.seconds, self.done = 0, 0.0, False
        self._text = Detokenizer(target.tokenizer, after=prompt)
        self._traces = stream(target, drafter, prompt, **options)

    def step(self) -> list[Piece]:
        """Run one decoding step; return the text that it added, [] at the end."""
        started = time.perf_counter()
        trace = next(self._traces, None)
        self.seconds += time.perf_counter() - started
        self.done = trace is None
        if trace is None or not trace.steps:
            return []
        fresh, sources = trace.new_tokens[len(self.tokens) :], trace.steps[-1].sources
        shown = [token for token in fresh if token not in self.eos]
        texts = [*map(self._text.add, shown), *[""] * (len(fresh) - len(shown))]
        added = list(zip(texts, sources, strict=True))
        self.tokens += fresh
        self.pieces += added
        self.calls += 1
        return added

    def figures(self) -> list[str]:
        """Return tokens, seconds and tokens/s; and tokens per target call."""
        count = len(self.tokens)
        rate = count / self.seconds if self.seconds else 0.0
        speed = f"{count} tokens in {self.seconds:.2f} s, {rate:.1f} tokens/s"
        return [speed, f"{count / max(1, self.calls):.2f} tokens per target call"]


def generate(config: GenerateOptions, words: Sequence[str]) -> tuple[int, None]:
    """Decode the prompt (with race=true also greedily), and show the texts as they grow; return the
    exit code and None (no JSON document)."""
    (text,) = words
    if config.race:
        config = replace(config, decoder={"greedy": decoder_config("greedy"), **config.decoder})
    torch.set_num_threads(config.threads or torch.get_num_threads())
    console = Console(highlight=False)
    disable_progress_bar()
    with console.status("loading"):
        runners, chat = load_runners(config, text)
    unwritten, race = [(text + "\n\n" * chat, "given")], len(runners) > 1
    live = None
    if race and console.is_terminal:
        live = Live(console=console, auto_refresh=False, transient=True)
        write(console, [*unwritten, ("\n", "")])
    interrupted = False
    try:
        with live or nullcontext():
            for added in turns(runners):
                if live:
                    live.update(columns(runners, console, whole=False), refresh=True)
                elif not race:
                    write(console, [*unwritten, *added])
                    unwritten = []
    except KeyboardInterrupt:
        interrupted = True
    if live:
        console.print(columns(runners, console, whole=True), "")
    elif race:
        for runner in runners:
            write(console, [(f"== {runner.name}\n", ""), *unwritten, *runner.pieces, ("\n\n", "")])
    else:
        write(console, [("\n\n", "")])
    console.print(*closing_lines(runners, console, chat=chat), sep="\n", soft_wrap=True)
    return 130 if interrupted else 0, None


def load_runners(config: RunConfig, prompt: str) -> tuple[list[Runner], bool]:
    """Load the models; return a warmed-up runner per decoder, each with its own target cache, and
    whether the prompt uses a chat template.

    Raises `ValueError` if a decoder runs on another engine.
    """
    pair = load_pair(config.model, with_draft=config.needs_draft)
    target, own = pair.target, config.task.for_tokenizer(pair.target.tokenizer).options
    task: Any = Prompts(path=BUNDLED, template=own["template"], template_args=own["template_args"])
    example = task.prompt.example("prompt", {"prompt": prompt}, {})
    bench = build(config, task, [example], pair, costs=load_costs(config.costs))
    ids, warm_up = map(bench.prompts.ids, (example, WARM_UP))
    choose = bench.sampling.choose(example.id, 0, vocab=target.vocab_size)
    options: dict = {"choose": choose, "eos": bench.eos, "max_new": bench.max_new}
    runners: list[Runner] = []
    for name, make in bench.decoders.items():
        if runners:  # the same weights, with a separate cache
            how: dict = {"engine": "fused" if target.exact else config.model.engine}
            how |= {"tokenizer": target.tokenizer, "max_len": target.max_len}
            target = CachedModel(target.model, **how)
        drafter = make()
        if not isinstance(drafter, Drafter):
            raise ValueError(f"{name} runs on another engine: choose another decoder")
        for model in (target, DrafterCapabilities.of(drafter).draft):
            if model is not None:
                model.prepare(len(ids) + bench.max_new)
        first: Any = make()
        for _ in stream(target, first, warm_up, max_new=WARM_UP_TOKENS, choose=choose):
            pass
        runners.append(Runner(name, target, drafter, ids, **options))
    return runners, task.prompt.chat


def turns(runners: Sequence[Runner]) -> Iterator[list[Piece]]:
    """Repeatedly step the runner that has used the least time, until all are done; yield the text
    that each step added."""
    while left := [runner for runner in runners if not runner.done]:
        yield min(left, key=lambda runner: runner.seconds).step()


def coloured(pieces: Iterable[Piece]) -> Text:
    """Return pieces of text in the colours of their sources. Control characters, which may affect
    the terminal, become replacement characters."""
    styles = DRAFTED | {"given": "dim"}
    shown = ((CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), styles.get(s)) for text, s in pieces)
    return Text().append_tokens(shown)


def write(console: Console, pieces: Sequence[Piece]) -> None:
    """Print pieces of text without a line break at the end: coloured on a terminal, else plain."""
    if console.is_terminal:
        console.print(coloured(pieces), end="", soft_wrap=True, highlight=False)
    else:
        console.file.write("".join(text for text, _ in pieces))
    console.file.flush()


def columns(runners: Sequence[Runner], console: Console, *, whole: bool) -> Table:
    """Return the runners' texts side by side, below their names and times; unless `whole`, only the
    last lines, which fit on the screen."""
    width = (console.width - GAP * (len(runners) - 1)) // len(runners)
    table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    heads, bodies = [], []
    for one in runners:
        table.add_column(width=width)
        heads.append(Text("\n".join((one.name, *one.figures())), "bold" if one.done else ""))
        lines = coloured(one.pieces).wrap(console, width, tab_size=4)
        bodies.append(Text("\n").join(lines if whole else lines[-max(1, console.height - 8) :]))
    table.add_row(*heads)
    table.add_row(*(Text("-" * width, style="dim") for _ in runners))
    table.add_row(*bodies)
    return table


def closing_lines(
    runners: Sequence[Runner], console: Console, *, chat: bool = False
) -> Iterator[Text | str]:
    """Yield a legend of the colours, each runner's tokens and times, and after a race whether the
    texts are equal."""
    if console.is_terminal:
        yield Text("plain: the target's own token")
        seen = {source for runner in runners for _, source in runner.pieces}
        for name in seen & DRAFTED.keys():
            yield Text(f"{name}: {SOURCES[name][1]}", DRAFTED[name])
    target = runners[0].target
    dtype = str(target.dtype).removeprefix("torch.")
    for runner in runners:
        yield f"{runner.name}: {', '.join(runner.figures())}, {dtype}{', chat template' * chat}"
    if not target.exact and dtype not in ("float32", "float64"):
        yield f"warning: in {dtype}, rounding may resolve a near tie of two tokens differently;"
        yield "model.dtype=float32 avoids this"
    if len(runners) > 1 and all(runner.done for runner in runners):
        at = first_mismatch(*(runner.tokens for runner in runners))
        yield "the decoders took turns; each was timed separately"
        if at is None:
            yield "the same text, token for token"
        else:
            yield f"warning: the texts differ from token {at + 1} on: a numeric tie, or a bug;"
            yield "'ouroboros audit' finds out which, for a run of 'ouroboros bench'"
