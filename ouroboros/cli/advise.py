"""`ouroboros advise`: predict each decoder's speed here, its best settings, and what fits.

The options are in conf/hydra/help/advise.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tqdm import tqdm

from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.recording import read_recording, runs_of
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.bench.report.plots import style
from ouroboros.bench.run.config import Sampling, check_whole
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import PairSpec, fast_dtype, load_pair, load_tokenizer, model_path
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.errors import check_unused
from ouroboros.cli.output import print_document
from ouroboros.cli.replay import draft_of, rates_given
from ouroboros.costs import UNTIMED, Costs
from ouroboros.decoders import check_decoders, decoder_factories, needs_draft
from ouroboros.tuning.advise import (
    CALLS,
    Evidence,
    advise,
    measure_evidence,
    recorded_evidence,
    timed_sizes,
)
from ouroboros.tuning.break_even import suppose
from ouroboros.tuning.check import accuracy, check_run
from ouroboros.tuning.memory import DeviceMemory, config_of, fits, footprint_of
from ouroboros.tuning.plots import predicted_dots, scaling_law
from ouroboros.tuning.predict import Prediction
from ouroboros.tuning.scaling import scaling

KEPT = ("model", "max_new", "temperature", "top_k", "top_p", "min_p", "threads", "seed")


def advise_all(cfg: DictConfig, as_json: bool = False) -> int:
    """Print tables, reasons and commands, then one JSON document; return 0."""
    config = chosen(plain(cfg))
    greedy = {PLAIN: {"_target_": "ouroboros.baselines.Greedy"}}
    config["decoder"] = {**greedy, **(config["decoder"] or {})}
    check_decoders(config["decoder"])
    for name in ("max_new", "visits", "threads"):
        check_whole(name, config[name], null=name == "threads")
    if not isinstance(config["nodes"], list) or not config["nodes"]:
        raise ValueError(f"nodes={config['nodes']}: give a list of tree sizes, as nodes=[1,8,64]")
    for size in config["nodes"]:
        check_whole("nodes", size)
    check_unused(config["results_dir"])
    torch.set_num_threads(config["threads"] or torch.get_num_threads())
    overrides = list(HydraConfig.get().overrides.task)
    config["given_task"] = config["task"] if any(o.startswith("task") for o in overrides) else None
    if config["check"]:
        document = print_check(config)
    elif config["scaling"]:
        document = print_scaling(config)
    else:
        memory, lines = memory_here(config)
        if config["agreement"] is not None:
            document = print_supposed(config)
        else:
            document = print_advice(config, overrides)
        print(lines)
        document = {**document, "memory": memory}
    print_document(document, as_json)
    return 0


def print_advice(config: dict, overrides: list[str]) -> dict:
    """Predict each decoder, print why one is slow and the best command; return the document."""
    evidence = evidence_of_folder(config, config) if config["runs"] else evidence_here(config)
    with tqdm(desc="settings", leave=False) as bar:
        made = advise(
            evidence, config["decoder"], search_settings=config["search"], on_try=bar.update
        )
    name, best = made.best
    line = bench_command(overrides, name, best.settings)
    print_table(made.table())
    print("", *made.why, sep="\n")
    print(f"\nbest here: {name}, {best.tokens_per_s:.1f} tokens/s predicted\n  {line}")
    document = {
        "decoders": {
            decoder: {kind: values(one) for kind, one in kinds.items()}
            for decoder, kinds in made.predictions.items()
        },
        "why": made.why,
        "settings_tried": made.tried,
        "rates": {decoder: asdict(own) for decoder, own in (evidence.rates or {}).items()},
        "best": {"decoder": name, "settings": dict(best.settings), "command": line},
    }
    if config["results_dir"]:
        folder = new_folder(config["results_dir"])
        folder.write_json("advice.json", document)
        evidence.costs.save(folder.path / "costs.json")
    return document


def print_supposed(config: dict) -> dict:
    """Print what assumed agreements would give; return the document."""
    given = config["agreement"]
    agreements = given if isinstance(given, list) else [given]
    table, facts = suppose(costs_given(config), agreements, **config["ideal"])
    ms = facts.pop("target_ms")
    print(f"a target call: {ms:.1f} ms, {1e3 / ms:.0f} tokens/s")
    print(f"a draft call: {facts['draft']:.3f} of a target call")
    print_table(table, missing="never")
    needs = (
        "no agreement below it"
        if facts["needs"] is None
        else f"an agreement of {facts['needs']:.2f}"
    )
    print(f"{facts['published']}x, as published, needs {needs}")
    return {
        "supposed": {
            **facts,
            "rows": table.astype(object).where(table.notna(), None).to_dict("records"),
        }
    }


def print_check(config: dict) -> dict:
    """Compare predictions with every run in `check`, print and write it; return the document."""
    given, folders = costs_given(config), run_folders(Path(config["check"]))
    frames, titles, timings = [], [], []
    for path in tqdm(folders, desc="folders", leave=False):
        measured = load(path)
        run, timing = measured.run, measured.run.get("timing", True)
        timings.append(timing)
        titles.append(RunFacts.of(run, measured.samples).title)
        own = {key: run["config"][key] for key in ("model", "decoder")}
        own = {**config, **own, "runs": str(path), "task": config["given_task"]}
        evidence = evidence_of_folder(config, own, timing=timing)
        decoders = {name: own["decoder"][name] for name in run["decoders"]}
        frames.append(check_run(path.name, measured.samples, evidence, decoders, timing=timing))
    points, timing = pd.concat(frames, ignore_index=True), all(timings)
    what = "speedup over greedy" if timing else "tokens for what a target call costs"
    costs = "Costs measured apart" if given else "Costs of the runs themselves"
    runs = f"{len(folders)} runs, the first: " if len(folders) > 1 else ""
    about = f"{runs}{titles[0]}. {costs if timing else 'Counts alone'}."
    found = accuracy(points)
    rows = points.sort_values("error", key=abs, kind="stable")
    rows = rows[["run", "decoder", "predicted", "measured", "error"]]
    print(f"{what}\n")
    print_table(rows, digits=3)
    print()
    print_table(found.reset_index(), digits=3)
    document = {"what": what, "about": about, "accuracy": known(found).to_dict("index")}
    if config["results_dir"]:
        folder = new_folder(config["results_dir"])
        folder.write_json("check.json", {**document, "points": points.to_dict("records")})
        parts = [f"# Predicted against measured: {what}", about]
        parts += [t.to_markdown(index=False, floatfmt=".3f") for t in (found.reset_index(), rows)]
        folder.write_text("check.md", "\n\n".join(parts) + "\n")
        figure = style.with_title(
            predicted_dots(points, what=what), "Predicted against measured", about
        )
        style.save(figure, folder.path / "check.png")
    return document


def print_scaling(config: dict) -> dict:
    """Print and write from how many devices on a wider tree pays; return the document."""
    costs, message_ms = costs_given(config), config["message_ms"]
    for count in config["devices"]:
        check_whole("devices", count)
    if costs is None:
        raise ValueError("scaling= needs costs: give costs=epyc, flat or a file, or machine.*")
    place = Path(config["scaling"])
    found = scaling(place, costs, devices=config["devices"], message_ms=message_ms)
    names = {"nodes": "best width (nodes)", "tokens": "tokens/step", "part": "largest part"}
    names |= {"speed": "over one device", "speedup": "over greedy"}
    laws = [
        f"{name}: tokens/step = {law.at_one:.2f} + {law.per_doubling:.2f} log2(nodes), "
        f"R² {law.r2:.2f}"
        for name, law in found.laws.items()
        if law is not None
    ]
    by = costs.about.get("name") or costs.about.get("computed") or "measured costs"
    text = "\n".join(
        [
            found.width_table().to_string(index=False, float_format="{:.2f}".format, na_rep="-"),
            *["", *laws, "", f"predicted by {by}, with {message_ms} ms for a message:"],
            found.best.rename(columns=names).to_string(index=False, float_format="{:.2f}".format),
            *["", *map(found.conclusion, found.laws)],
        ]
    )
    print(text)
    document = {**found.to_dict(), "message_ms": message_ms}
    if config["results_dir"]:
        folder = new_folder(config["results_dir"])
        folder.write_json("scaling.json", document)
        folder.write_text("scaling.md", f"{found.measured}\n\n```\n{text}\n```\n")
        figure = scaling_law(found.widths, found.laws)
        style.with_title(figure, "Tokens per step over nodes per step", found.measured)
        style.save(figure, folder.path / "scaling.png")
    return {"scaling": document}


def evidence_here(config: dict) -> Evidence:
    """Load the pair, run the decoders on a few prompts and time both models' calls."""
    task, examples = TaskSpec.from_mapping(config["task"]).load()
    drafts = any(map(needs_draft, config["decoder"].values()))
    pair = load_pair(PairSpec.from_mapping(config["model"]), with_draft=drafts)
    costs = costs_given(config)
    sampling = Sampling(**{field.name: config[field.name] for field in fields(Sampling)})
    options = {"max_new": config["max_new"], "sampling": sampling}
    bench = Bench(pair.target, pair.models, task, examples, {}, **options)
    bench.costs = costs
    if costs is None:
        timing = {**timed_sizes(bench, config["nodes"]), "visits": config["visits"]}
        total = config["visits"] * len(timing["contexts"])
        with tqdm(total=total, desc="calls", unit="visit", leave=False) as bar:
            bench.costs = Costs.measure_grid(
                pair.models, **timing, repeats=CALLS, on_visit=lambda _: bar.update()
            )
    tokenizer = pair.target.tokenizer
    bench.decoders = decoder_factories(
        config["decoder"], pair.draft, bench.costs, tokenizer=tokenizer
    )
    return measure_evidence(bench, pair.draft, costs, rates=rates_by_decoder(config["rates"]))


def evidence_of_folder(config: dict, own: dict, *, timing: bool = True) -> Evidence:
    """Take texts, and costs where none are given, from the results folder `own["runs"]`; `own` has
    the model and decoders too. Without `timing` the costs are those that its decoders went by."""
    rates = rates_by_decoder(config["rates"])
    folder, given = ResultsFolder(own["runs"]), costs_given(config)
    tokenizer = load_tokenizer(PairSpec.from_mapping(own["model"]))
    task = config["given_task"] and TaskSpec.from_mapping(config["given_task"])
    recording = read_recording(folder.path, tokenizer, task=task)
    decision_costs = given or folder.load_costs()
    costs = given or (load_costs(folder.path) if timing else decision_costs or Costs.load(UNTIMED))
    assert costs is not None
    live: dict[str, list[Sample]] = {}
    for sample in folder.load_samples() if given is None else ():
        if not sample.error:
            live.setdefault(sample.decoder, []).append(sample)
    draft = draft_of({**own, "draft": None}, runs_of(recording, PLAIN), tokenizer)
    return recorded_evidence(
        recording, costs, draft=draft, decision_costs=decision_costs, rates=rates, live=live
    )


def memory_here(config: dict) -> tuple[dict, str]:
    """Return what the pair needs and how long a context fits, as figures and as lines of text."""
    memory = DeviceMemory.of(config["model"]["device"])
    if config["machine"]["memory_gb"]:
        given = int(1e9 * config["machine"]["memory_gb"])
        memory = DeviceMemory("the machine", given, given)
    models = models_of(config)
    try:
        document, table = fits(models, memory, max_len=config["model"]["max_len"])
    except ValueError as error:
        return {}, f"\nmemory: {error}"
    names = ", ".join(f"{role} {Path(name).name} in {d}" for role, (name, d) in models.items())
    free = f"{memory.free_bytes / 1e9:.1f} of {memory.total_bytes / 1e9:.1f} GB free"
    head = f"\nmemory: {memory.device}, {free}; {names.replace('torch.', '')}"
    return document, f"{head}\n{table.to_string(index=False)}"


def costs_given(config: dict) -> Costs | None:
    """Return the costs of `costs=`, or those of a machine given by its bandwidth."""
    machine = config["machine"]
    if config["costs"] and machine["bandwidth_gb_s"]:
        raise ValueError("give costs= or machine.bandwidth_gb_s=, not both")
    if not machine["bandwidth_gb_s"]:
        return load_costs(config["costs"])
    models = models_of(config)
    pair = {role: footprint_of(config_of(name), dtype) for role, (name, dtype) in models.items()}
    figures = {name: machine[name] for name in ("bandwidth_gb_s", "tflops", "host_ms")}
    return Costs.roofline(pair["target"], pair.get("draft"), **figures)


def models_of(config: dict) -> dict[str, tuple[str, torch.dtype]]:
    """Return (shape or model, dtype) by role: the machine's shapes, else the model's."""
    spec = PairSpec.from_mapping(config["model"])
    own: Mapping[str, str | None] = spec.standin or {"target": spec.target, "draft": spec.draft}
    device = spec.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = fast_dtype(device) if spec.dtype == "auto" else getattr(torch, spec.dtype)
    names = config["machine"]["shapes"] or own
    return {role: (model_path(name), dtype) for role, name in names.items() if name}


def rates_by_decoder(given: object) -> dict[str, OffTextRates]:
    """Return `rates`: of an advice.json, or two shares for every decoder; {} for None."""
    try:
        if isinstance(given, str):
            found = json.loads(Path(given).read_text(encoding="utf-8"))["rates"]
            return {name: OffTextRates(**own) for name, own in found.items()}
        rates = rates_given(given)
        return {"": rates} if rates else {}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"rates={given}: give two shares, as rates=[0.7,0.04], or an advice.json"
        ) from error


def bench_command(overrides: list[str], name: str, settings: Mapping[str, object]) -> str:
    """Return the command line that runs a decoder at these settings beside greedy."""
    tasks = ("task",) if any(o.startswith("task=") for o in overrides) else ()
    kept = [o for o in overrides if o.lstrip("+").split("=")[0].split(".")[0] in (*KEPT, *tasks)]
    chosen = [f"++decoder.{name}.{key}={value}" for key, value in settings.items()]
    quoted = (f"'{o}'" if set(o) & set("[]{}$ ") else o for o in [*kept, *chosen])
    names = PLAIN if name == PLAIN else f"[{PLAIN},{name}]"
    return " ".join(["ouroboros bench", f'"decoder={names}"', *quoted])


def values(one: Prediction) -> dict:
    """Return a prediction as JSON values, without its samples."""
    found = asdict(replace(one, plain=(), samples=()))
    return {key: value for key, value in found.items() if key not in ("plain", "samples")}


def new_folder(results_dir: str) -> ResultsFolder:
    """Return the folder of the results, made where it does not exist."""
    Path(results_dir).mkdir(parents=True, exist_ok=True)
    return ResultsFolder(results_dir)


def print_table(table: pd.DataFrame, *, digits: int = 2, missing: str = "-") -> None:
    """Print a table."""
    form = f"{{:.{digits}f}}".format
    print(known(table, missing).to_string(index=False, float_format=form))


def known(table: pd.DataFrame, missing: object = None) -> pd.DataFrame:
    """Return a table with `missing` in place of NaN, as JSON wants it."""
    return table.astype(object).where(table.notna(), missing)
