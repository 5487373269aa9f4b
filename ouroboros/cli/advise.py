"""Predict each decoder's speed and best settings: `ouroboros advise`.

The options are in conf/hydra/help/advise.yaml.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import PLAIN, sample_frame
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import PairSpec, dtype_of, load_pair, model_path
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.common import new_folder, print_table
from ouroboros.cli.replay import check_draft
from ouroboros.costs import Costs
from ouroboros.costs.timing import config_of, footprint_of
from ouroboros.decoder_factory import check_decoders, needs_draft
from ouroboros.engine.head import listed_ids
from ouroboros.instantiate import check_sizes, check_whole
from ouroboros.tuning import advise as advising
from ouroboros.tuning.evidence import measured_evidence, recorded_evidence

COLUMNS = ["decoder", "settings", "tokens/s", "speedup", "measured", "cost/token"]
COLUMNS += ["draft/verify/host %"]
DURATION = """\
with its defaults this takes a few minutes; visits=1, task.limit=3 or search=false shorten it"""
ROLES = ("target", "draft")
TIMED = {"nodes", "visits"}
OF_RUNS = {"max_new", *TIMED, *(field.name for field in fields(Sampling))}
"""Options that have no effect with `runs`."""
KEPT = ("model", "max_new", "threads")
"""Options that are repeated in the recommended command, besides those of sampling."""


def advise(options: dict) -> tuple[int, dict]:
    """Print each decoder's prediction, the best command and why others are slow; return 0 and the
    JSON document. With a `results_dir`, write it as advice.json, with costs.json.

    The best command repeats the user's overrides that apply to it.
    """
    greedy = {PLAIN: {"_target_": "ouroboros.baselines.Greedy"}}
    decoders = options["decoder"] = {**greedy, **options["decoder"]}
    check_decoders(decoders)
    folder = new_folder(options["results_dir"])
    for name in ("max_new", "visits", "threads"):
        check_whole(name, options[name], null=name == "threads")
    check_sizes("nodes", options["nodes"])
    if not isinstance(options["search"], bool):
        raise ValueError(f"search={options['search']}: give true or false")
    torch.set_num_threads(options["threads"] or torch.get_num_threads())
    overrides = list(HydraConfig.get().overrides.task)
    named = {one.lstrip("+").partition("=")[0] for one in overrides}
    if options["runs"] and (unused := ", ".join(sorted(OF_RUNS & named))):
        raise ValueError(f"{unused}: runs= has recorded texts and settings: leave this out")
    spec, machine = PairSpec.from_mapping(options["model"]), options["machine"]
    assumed, shapes = machine["bandwidth_gb_s"] is not None, machine["shapes"]
    if options["costs"] and assumed:
        raise ValueError("give costs= or machine.bandwidth_gb_s=, not both")
    if any(machine.values()) and not assumed:
        raise ValueError("machine.* has no effect alone: give machine.bandwidth_gb_s= too")
    if shapes and not (isinstance(shapes, Mapping) and {"target"} <= shapes.keys() <= {*ROLES}):
        raise ValueError(f"machine.shapes={shapes}: give {{target: yi-34b, draft: yi-6b}}")
    if (options["costs"] or assumed) and (unused := ", ".join(sorted(TIMED & named))):
        raise ValueError(f"{unused}: no calls are timed with costs= or machine.*: leave this out")
    costs = load_costs(options["costs"])
    if assumed:
        dtype = torch.bfloat16 if shapes else dtype_of(spec)
        names = shapes or spec.standin or {"target": spec.target, "draft": spec.draft}
        head: Any = listed_ids(spec.path("draft"), spec.draft_head) if spec.draft else None
        heads = {"draft": len(head) if isinstance(head, list) else head}
        pair = {
            role: footprint_of(config_of(model_path(name)), dtype, heads.get(role))
            for role, name in names.items()
            if name
        }
        figures = {name: machine[name] for name in ("bandwidth_gb_s", "tflops", "host_ms")}
        for name, figure in figures.items():
            mapping = [dict] if name == "host_ms" else []
            if type(figure) not in (int, float, type(None), *mapping):
                raise ValueError(f"machine.{name}={figure}: give a number")
        if machine["tflops"]:  # the roofline takes weights of two bytes
            figures["tflops"] *= dtype.itemsize / 2
        costs = Costs.roofline(pair["target"], pair.get("draft"), **figures)
    rates = rates_by_decoder(options["rates"])
    task = TaskSpec.from_mapping(options["task"]) if options.get("task") else None
    own_task = task if any(option.startswith("task") for option in overrides) else None
    given: dict[str, Any] = {"costs": costs, "rates": rates}
    if options["runs"]:
        if Path(options["runs"]).is_dir() and any(map(needs_draft, decoders.values())):
            check_draft(spec, ResultsFolder(options["runs"]).load_run(), overrides)
        evidence = recorded_evidence(options["runs"], spec, decoders, task=own_task, **given)
    elif task is None:
        raise ValueError("task=null: give a task, as task=prompts task.path=FILE")
    else:
        made, examples = task.load()
        loaded = load_pair(spec, with_draft=any(map(needs_draft, decoders.values())))
        print(DURATION, file=sys.stderr)
        sampling = Sampling(**{field.name: options[field.name] for field in fields(Sampling)})
        limits = {"max_new": options["max_new"], "sampling": sampling}
        bench = Bench(loaded.target, loaded.models, made, examples, {}, **limits)
        sizes = {name: options[name] for name in ("nodes", "visits")}
        evidence = measured_evidence(bench, decoders, **given, **sizes)

    how = {"search_settings": options["search"], "progress": True}
    found, tried = advising.advise(evidence, options["decoder"], **how)
    if reason := found[PLAIN]["configured"].failed:
        raise ValueError(f"{PLAIN} is not predicted: {reason}")
    rows, why = [], []
    live = {name: sample_frame(samples) for name, samples in evidence.live.items()}
    for decoder, kinds in found.items():
        for kind, one in kinds.items():
            timed = live.get(decoder) if kind == "configured" and PLAIN in live else None
            rejection = decoders.get(decoder, {}).get("verification") == "rejection"
            equal = not (rejection and evidence.recorded.sampling.temperature)
            measured = None if timed is None else speedup(live[PLAIN], timed, equal=equal)
            ratios = one.speedup, measured
            words = ", ".join(f"{key} {value}" for key, value in one.settings.items())
            shares = (f"{100 * share:.0f}" for share in (one.shares or {}).values())
            texts = (ratio and ratio.text(unit="x") for ratio in ratios)
            row = decoder, words or kind, one.tokens_per_s or None, *texts
            rows.append((*row, one.cost_per_token or None, "/".join(shares) or None))
        start = kinds["configured"]
        if start.failed:
            why.append(f"{decoder} is not predicted: {start.failed}")
        elif start.why and start.speedup:
            ratio = f"{start.speedup.value:.2f}x"
            why.append(f"{decoder} is slower than greedy ({ratio}): {start.why}")
    top = {decoder: kinds.get("best", kinds["configured"]) for decoder, kinds in found.items()}
    name = max(top, key=lambda decoder: top[decoder].tokens_per_s)
    best = top[name]
    again = (*KEPT, "task") if any(option.startswith("task=") for option in overrides) else KEPT
    kept = [one for one in overrides if one.lstrip("+").split("=")[0].split(".")[0] in again]
    kept += [one for one in overrides if one.lstrip("+").startswith(f"decoder.{name}.")]
    sampled = asdict(evidence.recorded.sampling).items()
    kept += [f"{key}={value}" for key, value in sampled if value != getattr(Sampling(), key)]
    kept += [f"++decoder.{name}.{key}={value}" for key, value in best.settings.items()]
    chosen = PLAIN if name == PLAIN else f"[{PLAIN},{name}]"
    command = shlex.join(["ouroboros", "bench", f"decoder={chosen}", *kept])
    print_table(pd.DataFrame(rows, columns=COLUMNS))
    print("", *why, sep="\n")
    bare = "" if evidence.costs.prefill_ms else ", without prefill"
    print(f"\nbest: {name}, {best.tokens_per_s:.1f} tokens/s predicted{bare}\n  {command}")
    document = {
        "decoders": {n: {k: asdict(v) for k, v in own.items()} for n, own in found.items()},
        "why": why,
        "settings_tried": tried,
        "rates": {decoder: asdict(own) for decoder, own in (evidence.rates or {}).items()},
        "best": {"decoder": name, "settings": dict(best.settings), "command": command},
    }
    if folder:
        folder.write_json("advice.json", document)
        evidence.costs.save(folder.path / "costs.json")
    return 0, document


def rates_by_decoder(given: object) -> dict[str, OffTextRates]:
    """Return off-text rates by decoder. `given` is the path of an advice.json, two shares (returned
    as {"": rates}, for every decoder) or None ({}). Raises `ValueError` for anything else."""
    if not isinstance(given, str):
        rates = OffTextRates.given(given)
        return {"": rates} if rates else {}
    try:
        found: Mapping = json.loads(Path(given).read_text(encoding="utf-8"))["rates"]
        return {name: OffTextRates(**own) for name, own in found.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"rates={given}: give two shares, or an advice.json") from error
