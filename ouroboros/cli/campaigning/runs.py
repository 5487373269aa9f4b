"""What a stage says of a run: its figures and, where its calls were timed, the goals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tabulate import tabulate

from ouroboros.bench.campaign.goals import Goal, goals
from ouroboros.bench.campaign.replays import idle_share
from ouroboros.bench.metrics.sample import METHOD, PLAIN
from ouroboros.bench.report.folder_report import make_report
from ouroboros.bench.report.time_report import time_facts
from ouroboros.bench.run.costs import recorded_costs
from ouroboros.bench.run.prompt import prompt_ids
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.cli.build import build_decoders, build_task
from ouroboros.cli.campaigning.stages import Stage
from ouroboros.cli.profiling import draws_trees, floor_shares, write_profile
from ouroboros.select import Sampler, argmax

IDLE = "idle.json"


def compared(stage: Stage, name: str, *, profile: Mapping | None = None) -> dict:
    """Run an experiment; return its figures, and where its calls were timed, the goals."""
    try:
        folder = stage.job(name, profile=profile)
    except KeyboardInterrupt:
        stage.figures[name] = run_figures(stage, ResultsFolder(stage.folder.path / name))
        raise
    return run_figures(stage, folder, idle(stage, name, folder) if profile else {})


def idle(stage: Stage, name: str, folder: ResultsFolder) -> dict:
    """Return the GPU's idle share in a text by greedy and by Ouroboros; measured once, and kept."""
    path = folder.path / IDLE
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    config = stage.config(name)
    own = {n: options for n, options in config["decoder"].items() if n in (PLAIN, METHOD)}
    pair = stage.pair(config)
    makers = build_decoders(own, pair, recorded_costs(folder))
    prompt = prompt_ids(pair.target.tokenizer, build_task(config["task"])[1][0])
    heat = config["temperature"]
    choose = Sampler(temperature=heat, seed=config["seed"]) if heat else argmax
    found = {
        decoder: idle_share(pair.target, make, prompt, max_new=config["max_new"], choose=choose)
        for decoder, make in makers.items()
        if draws_trees(make)
    }
    folder.write_json(IDLE, found)
    return found


def run_figures(stage: Stage, folder: ResultsFolder, idle: Mapping | None = None) -> dict:
    """Return the figures of a run, finished or not, and write its report and time tables."""
    summary, samples = make_report(folder), folder.load_samples()
    model = folder.load_run()["model"]
    found: dict = {
        "title": summary["title"],
        "shapes": model["standin"],
        "engines": model["engines"],
        "finished": folder.load_run()["status"] == "finished",
        "samples": f"{summary['samples']} of {summary['samples_wanted']}",
        "decoders": {n: decoder_figures(row) for n, row in summary["decoders"].items()},
    }
    costs = recorded_costs(folder)
    if costs is not None and costs.footprints:  # a stage's own, not a probe's
        titles = {"title": summary["title"], "footnote": summary["footnote"]}
        facts = titles | time_facts(costs, samples)
        write_profile(folder, facts)
        for name, row in facts["steps"].items():
            found["decoders"][name]["wait_share"] = row["wait_share"]
        judged = goals(samples, costs, judged=not stage.rehearsal, idle=idle)
        found |= {"copy_gb_per_s": facts["copy_gb_per_s"], "floor_share": floor_shares(facts)}
        found["goals"] = [asdict(goal) for goal in judged]
        folder.write_text("goals.md", goals_table(summary["title"], judged))
    return found


def goals_table(title: str, judged: Sequence[Goal]) -> str:
    """Return goals as Markdown: figure, bounds, and whether they are kept."""
    words = {True: "reached", False: "missed", None: "not judged"}
    rows = [
        {
            "goal": goal.name.replace("_", " "),
            "figure": goal.figure,
            "at least": goal.at_least,
            "below": goal.below,
            "": words[goal.passed],
            "note": goal.note,
        }
        for goal in judged
    ]
    return f"{title}\n\n{tabulate(rows, headers='keys', tablefmt='github', floatfmt='.3f')}\n"


def decoder_figures(row: Mapping) -> dict:
    """Return the figures that stage.json carries of one decoder."""
    plain = (
        *("output_throughput", "acceptance_length", "tokens_per_target_call", "calls_per_token"),
        *("draft_share", "verify_share", "host_share", "repetition_rate", "peak_bytes"),
        *("energy_per_token_j", "unequal", "verdict", "failed"),
    )
    ratios = ("decode_speedup", "latency_speedup", "latency_speedup_macro", "latency_speedup_vs_hf")
    return {key: row[key] for key in (*plain, *ratios)}
