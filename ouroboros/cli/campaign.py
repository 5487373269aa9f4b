"""All that is to be measured when a GPU is at hand, in stages; on a CPU, their rehearsal.

`ouroboros campaign`; what can be typed stands in conf/hydra/help/campaign.yaml. Each stage runs in
a process of its own and writes as it goes: one that is done is skipped when the command is given
again, one that was stopped or failed goes on. Stages, runs and their settings: conf/campaign.yaml.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from omegaconf import DictConfig

from ouroboros.bench.run.options import check_whole
from ouroboros.bench.run.provenance import identity
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.cli import place
from ouroboros.cli.campaigning.archive import COMPILED, archive, keep_compiled
from ouroboros.cli.campaigning.stages import run_stage
from ouroboros.cli.campaigning.work import STAGES
from ouroboros.cli.configs import plain

WARNED_S, HURRIED_S = 25.0, 10.0  # before a stage's end: finish the sample; end at once
POLL_S = 0.2


def campaign(cfg: DictConfig) -> int:
    """Run stages, print a line for each and the document; return 0 if all asked for are done."""
    config = plain(cfg)
    check_campaign(config)
    root = Path(config["results_dir"])
    facts = {name: stage_facts(name, config) for name in config["stages"]}
    for name in config["stages"]:
        check_folder(root / name, facts[name], overwrite=config["overwrite"])
    keep_compiled(root / COMPILED)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the stage is told
    found: dict[str, dict] = {}
    interrupted = False
    for name in config["stages"]:
        found[name] = {"status": "stopped", "reason": "not begun"}
        if not interrupted:
            found[name], interrupted = stage_at(root / name, name, config, facts[name])
        document = save(root, found, rehearsal=config["rehearsed"])
        if config["archive"]:
            found[name]["not_archived"] = archive(root, name, Path(config["archive"]))
        reason = f": {found[name]['reason']}" if found[name].get("reason") else ""
        before = " before" if found[name].get("skipped") else ""
        print(f"{name}: {found[name]['status']}{before}{reason}", file=sys.stderr, flush=True)
    shown = {name: {**own, "figures": key_figures(own)} for name, own in found.items()}
    print(json.dumps({**document, "stages": shown}, ensure_ascii=False), flush=True)
    return 130 if interrupted else 0 if document["finished"] else 1


def save(root: Path, found: Mapping[str, dict], *, rehearsal: bool) -> dict:
    """Write campaign.json: the stages of this call, `found` so far, and those that lie there of
    others; return it."""
    stages = {name: found.get(name) or load(root / name) for name in STAGES}
    document = {
        "results": place(root),
        "rehearsal": rehearsal,
        "finished": all(own["status"] == "done" for own in found.values()),
        "stages": {name: own for name, own in stages.items() if own},
    }
    ResultsFolder(root).write_json("campaign.json", document)
    return document


def check_campaign(config: Mapping) -> None:
    """Raise `ValueError`, in one line, for what cannot be done."""
    if not config["rehearsed"] and not torch.cuda.is_available():
        raise ValueError(
            "this needs a GPU that torch sees (CUDA); a rehearsal on a CPU: shapes=small"
        )
    unknown = [name for name in config["stages"] if name not in STAGES]
    if unknown or not config["stages"]:
        raise ValueError(f"stages=[{','.join(map(str, unknown))}]: choose from {', '.join(STAGES)}")
    for name in config["stages"]:
        minutes = config["stage_minutes"].get(name)
        if not isinstance(minutes, int | float) or minutes <= WARNED_S / 60:
            raise ValueError(f"stage_minutes.{name}={minutes}: give more than {WARNED_S / 60:.1f}")
    check_whole("threads", config["threads"], null=True)


def stage_facts(name: str, config: Mapping) -> dict:
    """Return what says that a stage's results are those that are asked for."""
    options = config[name]
    return {"rehearsal": config["rehearsed"], "settings": identity(name, options)}


def check_folder(path: Path, facts: Mapping, *, overwrite: bool) -> None:
    """Raise `ValueError` where a stage with other settings lies in its folder; with `overwrite`
    remove what lies there."""
    if overwrite:
        shutil.rmtree(path, ignore_errors=True)
    old = load(path)
    if old and {key: old.get(key) for key in facts} != dict(facts):
        raise ValueError(
            f"{path} holds this stage with other settings: give another results_dir, "
            "or overwrite=true"
        )


def stage_at(path: Path, name: str, config: Mapping, facts: Mapping) -> tuple[dict, bool]:
    """Do a stage, unless it is done; return its stage.json, and whether Ctrl-C ended it."""
    old = load(path)
    if old.get("status") == "done":
        return {**old, "skipped": True}, False
    path.mkdir(parents=True, exist_ok=True)
    folder, spent = ResultsFolder(path), old.get("seconds", 0.0)
    folder.write_json("stage.json", {**facts, "status": "running", "seconds": spent})
    print(f"{name}: begins", file=sys.stderr, flush=True)
    options = {**config[name], "threads": config["threads"]}
    child = multiprocessing.get_context("spawn").Process(
        target=do, args=(name, options, path, facts), name=name
    )
    started = time.monotonic()
    child.start()
    interrupted = False
    try:
        watch(child, started + 60 * config["stage_minutes"][name])
    except KeyboardInterrupt:  # the child has had the signal as well
        interrupted = True
        watch(child, time.monotonic() + WARNED_S + HURRIED_S)
    found = load(path)
    if found["status"] == "running":
        found = died(child, time.monotonic() - started, facts)
    if interrupted and found["status"] == "stopped":
        found["reason"] = "interrupted: what is finished is kept, run it again"
    found["seconds"] += spent
    folder.write_json("stage.json", found)
    return found, interrupted


def do(name: str, options: Mapping, path: Path, facts: Mapping) -> None:
    """Do a stage in this process, which is its own."""
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    run_stage(name, STAGES[name], options, path=path, facts=facts)


def watch(child: BaseProcess, end: float) -> None:
    """Wait for a stage's process. As `end` (monotonic seconds) comes near it is asked to finish its
    sample, then to stop at once; then it is killed."""
    signals = [(end - WARNED_S, signal.SIGTERM), (end - HURRIED_S, signal.SIGTERM)]
    signals.append((end, signal.SIGKILL))
    while child.is_alive() and signals:
        child.join(POLL_S)
        if time.monotonic() >= signals[0][0] and child.pid is not None and child.is_alive():
            os.kill(child.pid, signals.pop(0)[1])
    child.join()


def died(child: BaseProcess, seconds: float, facts: Mapping) -> dict:
    """Return what is said of a stage whose process ended without a word."""
    code = child.exitcode or 0
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    timed_out = code == -signal.SIGKILL
    reason = f"its process ended by {how}" + (" at its time limit" if timed_out else "")
    status = "stopped" if timed_out else "failed"
    return {**facts, "status": status, "reason": reason, "seconds": seconds, "figures": {}}


def load(path: Path) -> dict:
    """Return a stage's stage.json; {} where there is none."""
    file = path / "stage.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def key_figures(stage: Mapping) -> dict:
    """Return the few of a stage's figures that the last line of stdout carries: of a check whether
    it passed, of a run tokens a second, speedup and goals, and single numbers."""
    found = {}
    for name, part in stage.get("figures", {}).items():
        if isinstance(part, Mapping) and "passed" in part:
            found[name] = part["passed"]
        elif isinstance(part, Mapping) and "left_out" in part:
            found[name] = f"left out: {part['left_out']}"
        elif isinstance(part, Mapping) and "decoders" in part:
            rows = {n: _row(row) for n, row in part["decoders"].items()}
            goals = {g["name"]: [_short(g["figure"]), g["passed"]] for g in part.get("goals", ())}
            found[name] = {"title": part["title"], "tokens_per_s_and_speedup": rows, "goals": goals}
        elif not isinstance(part, Mapping | list):
            found[name] = part
    return found


def _row(row: Mapping) -> list[float | None]:
    ratio = row["latency_speedup"]
    return [_short(row["output_throughput"]), _short(ratio and ratio["value"])]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
