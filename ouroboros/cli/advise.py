"""What to expect of each decoder here, which settings are best, why one is slow, and what fits.

`ouroboros advise`; what can be typed stands in conf/hydra/help/advise.yaml. From a few measured
points (one short run of each decoder, or a folder of any machine; what calls cost by size and
context) the time of settings that were not run is predicted.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import Interval, speedup
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.config import check_whole
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.cli.advising.check import check_runs
from ouroboros.cli.advising.devices import devices
from ouroboros.cli.advising.inputs import Evidence, from_folder, given_costs, run_here, shapes
from ouroboros.cli.advising.search import Explorer
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.errors import check_unused
from ouroboros.cli.output import print_document
from ouroboros.decoders import check_decoders
from ouroboros.engine.model_info import position_limit
from ouroboros.tuning.breakeven import why_slower
from ouroboros.tuning.memory import Room, config_of, footprint_of, longest_context, room
from ouroboros.tuning.predict import Prediction
from ouroboros.tuning.what_if import suppose

KEPT = ("model", "max_new", "temperature", "top_k", "top_p", "min_p", "threads", "seed")


def advise(cfg: DictConfig, as_json: bool = False) -> int:
    """Print tables, reasons and commands, then one JSON document; return 0."""
    config = chosen(plain(cfg))
    config["decoder"] = {
        PLAIN: {"_target_": "ouroboros.baselines.Greedy"},
        **(config["decoder"] or {}),
    }
    check(config)
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    overrides = list(HydraConfig.get().overrides.task)
    task = config["task"] if any(o.startswith("task") for o in overrides) else None
    if config["check"]:
        return finish(check_runs(config, task=task))
    if config["scaling"]:
        return finish({"scaling": devices(config, given_costs(config))})
    memory = memory_here(config)
    if config["agreement"] is not None:
        found = {"supposed": suppose(config, given_costs(config))}
    else:
        evidence = from_folder(config, task=task) if config["runs"] else run_here(config)
        found = told(evidence, config, overrides)
    print(memory.pop("text"))
    return finish({**found, "memory": memory})


def check(config: dict) -> None:
    """Raise `ValueError`, in one line, for options that cannot be."""
    check_decoders(config["decoder"])
    for name in ("max_new", "visits", "threads"):
        check_whole(name, config[name], null=name == "threads")
    nodes = config["nodes"]
    if not isinstance(nodes, list) or not nodes:
        raise ValueError(f"nodes={nodes}: give a list of tree sizes, as nodes=[1,8,64]")
    for size in nodes:
        check_whole("nodes", size)
    check_unused(config["results_dir"])


def told(evidence: Evidence, config: dict, overrides: list[str]) -> dict:
    """Print what is predicted for each decoder, why one is slow, and the best command."""
    explorer = Explorer(evidence.source, evidence.costs, config["decoder"])
    found = explored(explorer, config)
    rows = [row(name, evidence, *pair) for name, both in found.items() for pair in both.items()]
    print(tabulate(rows, headers="keys", floatfmt=".2f", missingval="-"))
    failed = {n: both["configured"].failed for n, both in found.items()}
    reasons = [f"{name} is not predicted: {why}" for name, why in failed.items() if why]
    reasons += slow(found, evidence)
    print("", *reasons, sep="\n")
    best = {name: both.get("best", both["configured"]) for name, both in found.items()}
    top = max(best, key=lambda name: best[name].tokens_per_s)
    line = command(overrides, top, best[top].settings)
    print(f"\nbest here: {top}, {best[top].tokens_per_s:.1f} tokens/s predicted\n  {line}")
    document = {
        "decoders": {n: {k: values(p) for k, p in both.items()} for n, both in found.items()},
        "why": reasons,
        "settings_tried": explorer.asked,
        "rates": {name: asdict(own) for name, own in evidence.rates.items()},
        "best": {"decoder": top, "settings": dict(best[top].settings), "command": line},
    }
    save(config["results_dir"], document, evidence)
    return document


def explored(explorer: Explorer, config: dict) -> dict[str, dict[str, Prediction]]:
    """Return for each decoder the prediction as configured and, where it was searched, the best."""
    found: dict[str, dict[str, Prediction]] = {}
    with tqdm(desc="settings", leave=False) as bar:
        for name in config["decoder"]:
            start = explorer.predicted(name, {})
            found[name] = {"configured": start}
            if config["search"] and not start.failed:
                best = explorer.best(name, start, bar.update)
                found[name] |= {"best": best} if best.settings else {}
    return found


def row(name: str, evidence: Evidence, kind: str, one: Prediction) -> dict:
    """One line of the table."""
    live = evidence.live.get(name) if kind == "configured" else None
    measured = speedup(evidence.live[PLAIN], live) if live else None
    shares = one.shares or {}
    return {
        "decoder": name,
        "settings": kind if not one.settings else as_words(one.settings),
        "tokens/s": one.tokens_per_s or None,
        "speedup": as_text(one.speedup),
        "measured": as_text(measured),
        "cost/token": one.cost_per_token or None,
        "draft/verify/host %": "/".join(f"{100 * share:.0f}" for share in shares.values()) or "-",
    }


def slow(found: dict, evidence: Evidence) -> list[str]:
    """Return a line for each decoder that is slower than greedy, as predicted or as measured."""
    lines = []
    for name, both in found.items():
        one = both["configured"]
        line = why_slower(name, one.plain, one.samples) if one.samples else None
        if line is None and evidence.live.get(name) and PLAIN in evidence.live:
            line = why_slower(name, evidence.live[PLAIN], evidence.live[name])
        lines += [line] if line else []
    return lines


def memory_here(config: dict) -> dict:
    """Return what the pair needs and how long a context fits, as figures and as "text"."""
    found: dict = {}
    here = room(config["model"]["device"])
    if config["machine"]["memory_gb"]:
        given = int(1e9 * config["machine"]["memory_gb"])
        here = Room("the machine", given, given)
    try:
        pair = [(role, config_of(name), name, dtype) for role, name, dtype in shapes(config)]
    except ValueError as error:
        return {"text": f"\nmemory: {error}"}
    (_, target, place, _), *_ = pair
    own = Path(place).is_dir()  # a shape, such as a published model's, says nothing of positions
    limit = position_limit(target.get_text_config()) if own else 1 << 30
    positions = min(limit, config["model"]["max_len"] or limit)
    for kind in ("as is", "int8"):
        sizes = {r: footprint_of(c, dtype, int8=kind == "int8") for r, c, _, dtype in pair}
        found[kind] = {
            "weights_gb": {role: own.weight_bytes / 1e9 for role, own in sizes.items()},
            "kv_bytes_per_token": {r: own.kv_bytes_per_token for r, own in sizes.items()},
            "longest_context": longest_context(sizes, here.free_bytes),
            "positions": positions,
        }
    names = ", ".join(f"{role} {Path(name).name} in {d}" for role, _, name, d in pair)
    free = f"{here.device}, {here.free_bytes / 1e9:.1f} of {here.total_bytes / 1e9:.1f} GB free"
    rows = tabulate([memory_row(kind, own) for kind, own in found.items()], headers="keys")
    text = f"\nmemory: {free}; {names.replace('torch.', '')}\n{rows}"
    return {"text": text, "free_gb": here.free_bytes / 1e9, "device": here.device, **found}


def memory_row(kind: str, own: dict) -> dict:
    """One line of the memory table."""
    gb, kv = own["weights_gb"].values(), own["kv_bytes_per_token"].values()
    return {
        "weights": kind,
        "GB (target + draft)": " + ".join(f"{size:.2f}" for size in gb),
        "KV cache, KB/token": " + ".join(f"{size / 1e3:.1f}" for size in kv),
        "longest context": context_words(own["longest_context"], own["positions"]),
    }


def context_words(by_memory: int, positions: int) -> str:
    """Return the longest context and what limits it.

    >>> context_words(1662746, 4096)
    "4096, the model's (memory: 1662746)"
    """
    if not by_memory:
        return "the weights do not fit"
    if by_memory < positions:
        return f"{by_memory}, by memory"
    return f"{positions}, the model's (memory: {by_memory})"


def command(overrides: list[str], name: str, settings) -> str:
    """Return the command line that runs a decoder at these settings beside greedy."""
    tasks = ("task",) if any(o.startswith("task=") for o in overrides) else ()
    groups = (*KEPT, *tasks)
    kept = [o for o in overrides if o.lstrip("+").split("=")[0].split(".")[0] in groups]
    chosen = [f"++decoder.{name}.{key}={value}" for key, value in settings.items()]
    quoted = (f"'{o}'" if set(o) & set("[]{}$ ") else o for o in [*kept, *chosen])
    names = PLAIN if name == PLAIN else f"[{PLAIN},{name}]"
    return " ".join(["ouroboros bench", f'"decoder={names}"', *quoted])


def save(results_dir: str | None, document: dict, evidence: Evidence) -> None:
    """Write advice.json and costs.json."""
    if results_dir:
        folder = ResultsFolder(results_dir)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_json("advice.json", document)
        evidence.costs.save(folder.path / "costs.json")


def values(one: Prediction) -> dict:
    """Return a prediction as JSON values."""
    found = asdict(one)
    return {key: value for key, value in found.items() if key not in ("plain", "samples")}


def as_text(one: Interval | None) -> str:
    """Return a speedup with its interval."""
    if one is None:
        return "-"
    spread = "" if one.low is None else f" [{one.low:.2f}, {one.high:.2f}]"
    return f"{one.value:.2f}x{spread}"


def as_words(settings) -> str:
    """Return settings in few characters."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in settings.items())


def finish(document: dict) -> int:
    """Print the JSON document, the last line; return the exit code."""
    print_document(document)
    return 0
