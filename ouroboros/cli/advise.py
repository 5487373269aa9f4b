"""`ouroboros advise`: predict each decoder's speed here, its best settings, and what fits.

The options are in conf/hydra/help/advise.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import PLAIN, sample_frame
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.run.config import Sampling, check_whole
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import PairSpec, fast_dtype, load_pair, model_path
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.configs import check_sizes, chosen, plain
from ouroboros.cli.errors import check_unused
from ouroboros.cli.output import known, print_document, print_table
from ouroboros.costs import Costs
from ouroboros.decoders import check_decoders, needs_draft
from ouroboros.tuning.advise import Evidence, advise, measured_evidence, recorded_evidence
from ouroboros.tuning.check import accuracy, check
from ouroboros.tuning.memory import DeviceMemory, config_of, fits, footprint_of
from ouroboros.tuning.scaling import scaling

COLUMNS = ["decoder", "settings", "tokens/s", "speedup", "measured", "cost/token"]
COLUMNS += ["draft/verify/host %"]
KEPT = ("model", "max_new", "temperature", "top_k", "top_p", "min_p", "threads", "seed")
Models = Mapping[str, tuple[str, torch.dtype]]
"""(Shape or model, dtype) by role."""


def advise_all(cfg: DictConfig, as_json: bool = False) -> int:
    """Print tables, reasons and commands, then one JSON document; return 0."""
    config = chosen(plain(cfg))
    greedy = {PLAIN: {"_target_": "ouroboros.baselines.Greedy"}}
    config["decoder"] = {**greedy, **(config["decoder"] or {})}
    check_decoders(config["decoder"])
    check_unused(config["results_dir"])
    for name in ("max_new", "visits", "threads"):
        check_whole(name, config[name], null=name == "threads")
    for name in ("nodes", "devices"):
        check_sizes(name, config[name])
    torch.set_num_threads(config["threads"] or torch.get_num_threads())
    overrides = list(HydraConfig.get().overrides.task)
    task = TaskSpec.from_mapping(config["task"]) if config["task"] else None
    own_task = task if any(o.startswith("task") for o in overrides) else None
    models = models_of(config)
    given: dict[str, Any] = {
        "costs": costs_given(config, models),
        "rates": rates_by_decoder(config["rates"]),
    }
    if config["check"]:
        document = print_check(config, task=own_task, **given)
    elif config["scaling"]:
        document = print_scaling(config, given["costs"])
    else:
        memory, lines = memory_here(config, models)
        spec, decoders = PairSpec.from_mapping(config["model"]), config["decoder"]
        if config["runs"]:
            evidence = recorded_evidence(config["runs"], spec, decoders, task=own_task, **given)
        elif task is None:
            raise ValueError("task=null: give a task, as task=prompts task.path=FILE")
        else:
            sizes = {name: config[name] for name in ("nodes", "visits")}
            evidence = measured_evidence(bench_of(config, spec, task), decoders, **given, **sizes)
        document = {**print_advice(config, evidence, overrides), "memory": memory}
        print(lines)
    print_document(document, as_json)
    return 0


def bench_of(config: dict, spec: PairSpec, task: TaskSpec) -> Bench:
    """Load the pair and the prompts of a short run."""
    made, examples = task.load()
    pair = load_pair(spec, with_draft=any(map(needs_draft, config["decoder"].values())))
    sampling = Sampling(**{field.name: config[field.name] for field in fields(Sampling)})
    options = {"max_new": config["max_new"], "sampling": sampling}
    return Bench(pair.target, pair.models, made, examples, {}, **options)


def print_advice(config: dict, evidence: Evidence, overrides: list[str]) -> dict:
    """Predict each decoder, print why one is slow and the best command; return the document."""
    options = {"search_settings": config["search"], "progress": True}
    found, tried = advise(evidence, config["decoder"], **options)
    rows, why = [], []
    live = {name: sample_frame(samples) for name, samples in evidence.live.items()}
    for decoder, kinds in found.items():
        for kind, one in kinds.items():
            timed = live.get(decoder) if kind == "configured" else None
            ratios = one.speedup, None if timed is None else speedup(live[PLAIN], timed)
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
    line = bench_command(overrides, name, top[name].settings)
    print_table(pd.DataFrame(rows, columns=COLUMNS))
    print("", *why, sep="\n")
    print(f"\nbest here: {name}, {top[name].tokens_per_s:.1f} tokens/s predicted\n  {line}")
    document = {
        "decoders": {
            decoder: {k: asdict(v) for k, v in own.items()} for decoder, own in found.items()
        },
        "why": why,
        "settings_tried": tried,
        "rates": {decoder: asdict(own) for decoder, own in (evidence.rates or {}).items()},
        "best": {"decoder": name, "settings": dict(top[name].settings), "command": line},
    }
    write(config, "advice", document)
    if config["results_dir"]:
        evidence.costs.save(Path(config["results_dir"], "costs.json"))
    return document


def print_check(config: dict, **given: Any) -> dict:
    """Compare predictions with every run in `check`, print and write it; return the document."""
    points, what, about = check(Path(config["check"]), **given)
    found = accuracy(points)
    rows = points.sort_values("error", key=abs, kind="stable")
    tables = rows[["run", "decoder", "predicted", "measured", "error"]], found.reset_index()
    print(what)
    for table in tables:
        print()
        print_table(table, digits=3)
    document = {"what": what, "about": about, "accuracy": known(found).to_dict("index")}
    texts = [table.to_markdown(index=False, floatfmt=".3f") for table in tables[::-1]]
    text = "\n\n".join([f"# Predicted against measured: {what}", about, *texts]) + "\n"
    write(config, "check", {**document, "points": points.to_dict("records")}, text)
    return document


def print_scaling(config: dict, costs: Costs | None) -> dict:
    """Print and write how many devices it takes for a wider tree to pay; return the document."""
    if costs is None:
        raise ValueError("scaling= needs costs: give costs=epyc, flat or a file, or machine.*")
    options = {"devices": config["devices"], "message_ms": config["message_ms"]}
    found = scaling(Path(config["scaling"]), costs, **options)
    laws = pd.DataFrame.from_dict({k: v or {} for k, v in found["laws"].items()}, orient="index")
    widths, best = pd.json_normalize(found["widths"]), pd.DataFrame(found["predicted"])
    tables = widths, laws.reset_index(), best
    print(found["measured"], f"predicted by {costs.title}, {config['message_ms']} ms a message")
    for table in tables:
        print()
        print_table(table)
    texts = [table.to_markdown(index=False, floatfmt=".2f") for table in tables]
    write(config, "scaling", found, "\n\n".join([found["measured"], *texts]) + "\n")
    return {"scaling": found}


def write(config: dict, name: str, document: dict, text: str | None = None) -> None:
    """Write NAME.json and, with a text, NAME.md to `results_dir`, where one is given."""
    if not config["results_dir"]:
        return
    folder = ResultsFolder(config["results_dir"])
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_json(f"{name}.json", document)
    if text is not None:
        folder.write_text(f"{name}.md", text)


def memory_here(config: dict, models: Models) -> tuple[dict, str]:
    """Return what the pair needs and how long a context fits, as figures and as lines of text."""
    memory = DeviceMemory.of(config["model"]["device"])
    if config["machine"]["memory_gb"]:
        given = int(1e9 * config["machine"]["memory_gb"])
        memory = DeviceMemory("the machine", given, given)
    try:
        document, table = fits(models, memory, max_len=config["model"]["max_len"])
    except ValueError as error:
        return {}, f"\nmemory: {error}"
    names = ", ".join(f"{role} {Path(name).name} in {d}" for role, (name, d) in models.items())
    free = f"{memory.free_bytes / 1e9:.1f} of {memory.total_bytes / 1e9:.1f} GB free"
    head = f"\nmemory: {memory.device}, {free}; {names.replace('torch.', '')}"
    return document, f"{head}\n{table.to_string(index=False)}"


def costs_given(config: dict, models: Models) -> Costs | None:
    """Return the costs of `costs=`, or those of a machine given by its bandwidth."""
    machine = config["machine"]
    if config["costs"] and machine["bandwidth_gb_s"]:
        raise ValueError("give costs= or machine.bandwidth_gb_s=, not both")
    if not machine["bandwidth_gb_s"]:
        return load_costs(config["costs"])
    pair = {role: footprint_of(config_of(name), dtype) for role, (name, dtype) in models.items()}
    figures = {name: machine[name] for name in ("bandwidth_gb_s", "tflops", "host_ms")}
    return Costs.roofline(pair["target"], pair.get("draft"), **figures)


def models_of(config: dict) -> Models:
    """Return the machine's shapes, else the config's models."""
    spec = PairSpec.from_mapping(config["model"])
    own: Mapping[str, str | None] = spec.standin or {"target": spec.target, "draft": spec.draft}
    device = spec.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = fast_dtype(device) if spec.dtype == "auto" else getattr(torch, spec.dtype)
    names = config["machine"]["shapes"] or own
    return {role: (model_path(name), dtype) for role, name in names.items() if name}


def rates_by_decoder(given: object) -> dict[str, OffTextRates]:
    """Return `rates`: of an advice.json, or two shares for every decoder; {} for None."""
    if not isinstance(given, str):
        rates = OffTextRates.given(given)
        return {"": rates} if rates else {}
    try:
        found = json.loads(Path(given).read_text(encoding="utf-8"))["rates"]
        return {name: OffTextRates(**own) for name, own in found.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"rates={given}: give two shares, or an advice.json") from error


def bench_command(overrides: list[str], name: str, settings: Mapping[str, object]) -> str:
    """Return the command line that runs a decoder at these settings beside greedy."""
    tasks = ("task",) if any(o.startswith("task=") for o in overrides) else ()
    kept = [o for o in overrides if o.lstrip("+").split("=")[0].split(".")[0] in (*KEPT, *tasks)]
    chosen = [f"++decoder.{name}.{key}={value}" for key, value in settings.items()]
    quoted = (f"'{o}'" if set(o) & set("[]{}$ ") else o for o in [*kept, *chosen])
    names = PLAIN if name == PLAIN else f"[{PLAIN},{name}]"
    return " ".join(["ouroboros bench", f'"decoder={names}"', *quoted])
