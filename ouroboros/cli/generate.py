"""Decode one prompt and show who proposed each token: `ouroboros generate`.

What can be typed stands in `ouroboros.cli.arguments`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from rich.console import Console
from rich.live import Live
from transformers.utils.logging import disable_progress_bar

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.loop import WARM_UP, eos_ids
from ouroboros.bench.run.pair import Pair
from ouroboros.bench.run.prompts import prompt_ids
from ouroboros.bench.tasks.task import Example
from ouroboros.cli.build import build_costs, build_pair, build_sampling
from ouroboros.cli.configs import composed
from ouroboros.cli.generating.runner import Runner
from ouroboros.cli.generating.screen import columns, legend, write
from ouroboros.decode import Drafter, DrafterCapabilities, stream
from ouroboros.decoders import check_decoders, decoder_factories
from ouroboros.engine.model import CachedModel

WARM_UP_TOKENS = 16


def generate(options: argparse.Namespace) -> int:
    """Return 0, or 130 where Ctrl-C ended it."""
    config = configured(options)
    check_decoders(config["decoder"])
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    console = Console(highlight=False)
    disable_progress_bar()
    with console.status("loading"):
        pair = build_pair(config)
        runners = list(prepared(config, pair, options.prompt))
    race = race_on_terminal if console.is_terminal else race_as_text
    show = race if len(runners) > 1 else alone
    try:
        show(runners, console, options.prompt)
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    console.print(*closing(runners, console), sep="\n", soft_wrap=True)
    return 130 if interrupted else 0


def configured(options: argparse.Namespace) -> dict:
    """Return the resolved config of the models, the decoders and the sampling."""
    names = dict.fromkeys([PLAIN, options.decoder] if options.race else [options.decoder])
    overrides = [
        f"decoder=[{','.join(names)}]",
        f"max_new={options.max_new}",
        f"temperature={options.temperature}",
        f"seed={options.seed}",
    ]
    if options.target or options.draft:
        overrides.append("model=hf")
    for role in ("target", "draft"):
        if getattr(options, role):
            overrides.append(f"model.{role}='{getattr(options, role)}'")
    return composed([*overrides, *options.overrides])


def prepared(config: dict, pair: Pair, text: str) -> Iterator[Runner]:
    """Yield each decoder, warm, with a target's cache of its own.

    Raises `ValueError` for one that is not of this engine, and for a prompt that cannot be.
    """
    model = pair.target
    prompt = prompt_ids(model.tokenizer, Example("prompt", text))
    costs = build_costs(config, pair, len(prompt) + config["max_new"])
    makers = decoder_factories(config["decoder"], pair.draft, costs, tokenizer=model.tokenizer)
    warm = prompt_ids(model.tokenizer, WARM_UP)
    choose = build_sampling(config).choose("prompt", 0, vocab=model.vocab_size)
    for index, (name, make) in enumerate(makers.items()):
        target = model if index == 0 else another(model, config)
        first, drafter = make(), make()
        if not isinstance(first, Drafter) or not isinstance(drafter, Drafter):
            raise ValueError(f"{name} is another engine's: choose a decoder of this one")
        models = [
            used for used in (target, DrafterCapabilities.of(drafter).draft) if used is not None
        ]
        empty(models, len(prompt) + config["max_new"])
        for _ in stream(target, first, warm, max_new=WARM_UP_TOKENS, choose=choose):
            pass
        empty(models, len(prompt) + config["max_new"])
        yield Runner(
            name,
            target,
            drafter,
            prompt,
            max_new=config["max_new"],
            eos=eos_ids(target),
            choose=choose,
        )


def empty(models: list[CachedModel], context: int) -> None:
    """Forget what is cached, and do beforehand what calls on such a context need once."""
    for model in models:
        model.prepare(context)


def another(model: CachedModel, config: dict) -> CachedModel:
    """Return the same weights with a cache of their own."""
    return CachedModel(
        model.model,
        tokenizer=model.tokenizer,
        max_len=model.max_len,
        engine=config["model"]["engine"],
    )


def alone(runners: list[Runner], console: Console, prompt: str) -> None:
    """Write one decoder's text as it comes."""
    (runner,) = runners
    write(console, [], prompt)
    while not runner.done:
        write(console, runner.step())
    console.file.write("\n\n")


def turns(runners: list[Runner]) -> Iterator[None]:
    """Step the runner whose own clock is behind, until all are through."""
    while left := [runner for runner in runners if not runner.done]:
        min(left, key=lambda runner: runner.seconds).step()
        yield


def race_on_terminal(runners: list[Runner], console: Console, prompt: str) -> None:
    """Show the texts side by side as they grow, then whole."""
    console.print(prompt, style="dim", markup=False, soft_wrap=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for _ in turns(runners):
            live.update(columns(runners, console, whole=False), refresh=True)
    console.print(columns(runners, console, whole=True), "")


def race_as_text(runners: list[Runner], console: Console, prompt: str) -> None:
    """Write one text after the other."""
    for _ in turns(runners):
        pass
    for runner in runners:
        console.file.write(f"== {runner.name}\n")
        write(console, runner.pieces, prompt)
        console.file.write("\n\n")


def closing(runners: list[Runner], console: Console) -> Iterator:
    """Yield the last lines: colours, figures, and of a race whether the texts are the same."""
    if console.is_terminal:
        yield legend(runners)
    yield from (f"{runner.name}: {', '.join(runner.figures())}" for runner in runners)
    if len(runners) > 1:
        first, second = (runner.tokens for runner in runners)
        yield "the two took turns; each time is its own"
        if first == second:
            yield "the same text, token for token"
        else:
            pairs = enumerate(zip(first, second, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
            yield f"the texts differ from token {at + 1} on: 'ouroboros audit' judges such runs"
