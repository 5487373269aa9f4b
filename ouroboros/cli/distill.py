"""Make a draft for a model, from the model itself: `ouroboros distill`."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch

from ouroboros.bench.run.pair import load_model
from ouroboros.bench.run.prompts import PromptBuilder
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.options import DistillOptions
from ouroboros.core.instantiate import check_whole
from ouroboros.costs import Costs
from ouroboros.decode import decode
from ouroboros.decoder_factory import make_decoder
from ouroboros.engine.model import CachedModel
from ouroboros.models import distill as distilling
from ouroboros.models.vocab import eos_ids

RACED = ("greedy", "speculative", "ouroboros")
USEFUL = 0.3  # agreement at T = 0
PROMPTS, NEW, RACE_S = 6, 96, 60.0  # of the measured speedup: most prompts, tokens, seconds
CARD = """\
---
base_model: {target}
library_name: transformers
---
# A draft for {target}

Made from the target by `ouroboros distill`: layers {layers} of the target, trained on {texts} texts
of {tokens} tokens that the target wrote ({prompts}), in {steps} steps. It scores {head} ids
(head_ids.json); the target verifies over all of its ids, so the output is the target's.

{table}

Agreement: how often the draft selects the target's token, on {held_out} prompts that it was not
trained on. A draft call takes {draft_cost:.2f} target calls. Measured speedup over greedy, T = 0,
{measured}.

    ouroboros bench model=hf model.target={target} model.draft={out}

In Python: `draft=CachedModel.from_pretrained({out!r}, draft_head="auto")`. The licence is the
target's.
"""


def distill(options: DistillOptions) -> tuple[int, dict]:
    """Make the draft, print and save the report; return 0 and the JSON document."""
    spec = options.model
    for name in ("head", "max_new", "tokens", "threads"):
        check_whole(name, getattr(options, name), null=name in ("tokens", "threads"))
    if not options.minutes > 0:
        raise ValueError(f"minutes={options.minutes}: give a number above 0")
    if not isinstance(options.layers, list):
        check_whole("layers", options.layers)
    name = Path(str(spec.target)).name.removesuffix(".gguf")
    folder = Path(options.out or f"drafts/{name}")
    if (folder / "README.md").exists():
        raise ValueError(f"out={folder} has a finished draft: give another folder, or delete it")
    torch.set_num_threads(options.threads or torch.get_num_threads())
    target = load_model(spec, "target")
    prompts = None
    if options.prompts is not None:
        task = TaskSpec("prompts", {"path": options.prompts, "template": "auto"})
        _, examples = task.for_tokenizer(target.tokenizer).load()
        prompts = list(map(PromptBuilder(target.tokenizer).ids, examples))
    names = ("layers", "head", "minutes", "tokens", "max_new", "seed")
    recipe = distilling.Recipe(**{name: getattr(options, name) for name in names})
    made = distilling.distill(target, prompts, recipe, folder)
    draft = load_model(replace(spec, draft=str(folder)), "draft")
    costs = Costs.measure(target, draft)
    measured = measured_speedup(target, draft, costs, made.held_out)
    rows = {"agreement before training": made.untrained, "agreement": made.trained}
    table = pd.DataFrame(rows).T.rename(columns="T = {:g}".format).to_markdown(floatfmt=".2f")
    words = ", ".join(f"{name} {value:.2f}x" for name, value in measured.items())
    facts = {**asdict(made), "out": str(folder), "held_out": len(made.held_out)}
    facts["draft_cost"] = ratio = costs.draft_ratio()
    source = "your prompts" if prompts else "its own prompts"
    card = {**facts, "target": spec.target, "table": table, "prompts": source, "measured": words}
    (folder / "README.md").write_text(CARD.format(**card), encoding="utf-8")
    shutil.rmtree(folder / "work")
    print(table)
    print(f"a draft call takes {ratio:.2f} target calls; measured at T = 0: {words}")
    if made.trained[0.0] < USEFUL:
        rare = f"warning: after {made.tokens} tokens the draft agrees too rarely to help"
        print(f"{rare}: give more minutes or layers, and another out", file=sys.stderr)
    print(f"use it: ouroboros bench model=hf model.target={spec.target} model.draft={folder}")
    return 0, {**facts, "measured_speedup": measured}


def measured_speedup(
    target: CachedModel, draft: CachedModel, costs: Costs, prompts: list[list[int]]
) -> dict[str, float]:
    """Return each decoder's speedup over greedy at temperature 0, prefill included, on a few of
    the prompts; the decoders alternate."""
    eos, spent = eos_ids(target), dict.fromkeys(RACED, 0.0)
    began = time.perf_counter()
    decoders = {name: make_decoder(name, draft, costs=costs) for name in RACED}
    for number, prompt in enumerate([prompts[0], *prompts[:PROMPTS]]):
        if number > 1 and time.perf_counter() - began > RACE_S:
            break
        for name, decoder in decoders.items():
            started = time.perf_counter()
            trace = decode(target, decoder, prompt, max_new=NEW, eos=eos)  # type: ignore[arg-type]
            if number:
                spent[name] += (time.perf_counter() - started) / len(trace.new_tokens)
    return {name: spent["greedy"] / spent[name] for name in RACED[1:]}
