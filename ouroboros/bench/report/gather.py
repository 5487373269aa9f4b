"""Read the measurements in folders: single runs, and the jobs of sweeps."""

from __future__ import annotations

import glob
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from ouroboros.audit.report import Row
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.bench.run.audit import load_audit
from ouroboros.bench.run.folder import RUN, SAMPLES, ResultsFolder, SampleKey, stored
from ouroboros.bench.run.identity import BUSY
from ouroboros.bench.run.pair import SHIPPED, model_names
from ouroboros.costs import CostModel

COUNTS = ("batch_size", "samples_wanted", "resumed")
TYPES = {"task": str, "status": str, "timed": bool, **dict.fromkeys(COUNTS, int)}
"""Facts whose values in run.json are checked to have these types."""


@dataclass(frozen=True)
class Measured:
    """One measurement: run.json, samples, scores and audit of a results folder.

    `scores` is {sample key: {name: score}}, `trees` {sample key: [tree per step]}. `priced` is the
    cost model that predicts seconds from counts (None: no predictions).
    """

    folder: Path
    run: dict
    samples: list[Sample]
    scores: dict[SampleKey, dict[str, float]] = field(default_factory=dict)
    audit: list[Row] = field(default_factory=list)
    priced: CostModel | None = None
    trees: dict[SampleKey, list[ProposedTree]] = field(default_factory=dict)

    @cached_property
    def facts(self) -> SimpleNamespace:
        """What was measured and where, as the attributes below, in the order of summary.json.

        `title` is one line, joined by " · ". `nature` is the kind of models: "model"; "stand-in" (a
        small model embedded in a larger one); "rehearsal" (an experiment with published numbers,
        run on the pair that ships with the project). `prompts` and `samples` are the numbers
        measured. `costs` is the name of the costs that predict seconds from counts (None: they
        predict nothing); `draft_cost` is the recorded cost of a draft call in target calls.
        `busy` says that other programs used much of the machine (while times were measured, or at
        the start if only that was recorded), or is ""; `fallbacks` says why engines are slower.
        """
        run, samples = self.run, self.samples
        task, model, sampling = run["task"], run["model"], run["sampling"]
        prompts, wanted = len({s.example for s in samples if not s.error}), task["prompts"]
        count = f"{prompts}" if prompts == wanted else f"{prompts} of {wanted}"
        config, timed = run.get("config", {}), run.get("timing", True)
        size = config.get("batch_size", 1)
        batch = f"batch size {size}" + ", refilled" * (size > 1 and config.get("refill", False))
        if config.get("parallel"):
            batch += f", parallel={config['parallel']}"
        length = config.get("context_tokens")
        more = " or more" * any(s.prompt_tokens > 1.1 * (length or math.inf) for s in samples)
        padded = f" padded to {length} tokens{more}" if length else ""
        each = f"prompt{'s' * (wanted != 1)}{padded}"
        what = f"{task['name']}, {count} {each} x up to {run['max_new']} tokens"
        template, given = task.get("template", "plain"), task.get("template_args") or {}
        if template != "plain":
            what += ", chat template" if template == "chat" else f", template {template}"
            what += "".join(f", {name}={json.dumps(value)}" for name, value in given.items())

        standin, published, nature = model.get("standin"), run.get("published"), "model"
        models, ships = model_names(model), str(model.get("target")).startswith(SHIPPED)
        if standin:
            models += " as a stand-in, shapes " + " / ".join(filter(None, standin.values()))
        if published and ships:
            models, nature = f"{models} (a rehearsal)", "rehearsal"

        made = model.get("engines", {}).get("target", model)
        engine, exact = made.get("engine", "eager"), " (exact calls)" * made.get("exact", False)
        quantised = [f"{role} {how}" for role, how in (model.get("quantised") or {}).items()]
        engines = [] if engine == "eager" else [f"{engine} engine{exact}"]
        arithmetic = ", ".join([model["dtype"], *quantised, *engines])
        temperature, penalty = sampling["temperature"], sampling.get("repetition_penalty", 1.0)
        words = f"T={temperature:g}" if temperature else "greedy (T=0)"
        for name, off in {"top_k": 0, "top_p": 1.0, "min_p": 0.0}.items() if temperature else ():
            words += f", {name}={value:g}" if (value := sampling.get(name, off)) != off else ""
        words += "" if penalty == 1.0 else f", repetition penalty {penalty:g}"

        machine, versions = (run["provenance"][key] for key in ("machine", "versions"))
        cpu, threads = f"{machine['cpu']}, {machine['cores']} cores", machine["threads"]
        on_gpu = model["device"].startswith("cuda") and machine["gpus"]
        gpu = int(model["device"].partition(":")[2] or 0)
        device, parallel = machine["gpus"][gpu] if on_gpu else cpu, run.get("parallel")
        device += f", {parallel['ranks']} processes" if parallel else ""
        status = run.get("status", "finished")
        samples_wanted = run.get("samples_wanted", len(samples))
        priced = self.priced if size == 1 else None  # costs are for calls of a single sequence
        by_decoder = [[s for s in samples if s.decoder == name] for name in run["decoders"]]
        ours = [own for own in by_decoder if any(t.scored for s in own for t in s.steps)]
        if priced and all(map(priced.why_not, ours)):
            priced = None
        costs = priced and priced.name
        load = run.get("load", {})
        others = load.get("other_percent", load.get("cpu_percent", 0.0))
        others = max(others, load.get("gpu_percent", 0.0)) if timed else 0.0
        busy = f"machine was busy ({others:.0f} % by other programs)" if others > BUSY else ""
        bare = ", without prefill" if priced and not priced.costs.prefill_ms else ""
        bare += ", for one process" * bool(parallel)
        predicted = [f"predicted with {costs}{bare}"] if costs and not timed else []
        title = [what, models, arithmetic, words, batch, device, *filter(None, [busy]), *predicted]
        return SimpleNamespace(
            title=" · ".join(title),
            incomplete=len(samples) < samples_wanted or status != "finished",
            task=task["name"],
            what=what,
            models=models,
            arithmetic=arithmetic,
            sampling=words,
            batch_size=size,
            device=device,
            busy=busy,
            footnote=f"{cpu}, {threads} thread{'s' * (threads > 1)}; torch {versions['torch']}, "
            f"transformers {versions['transformers']}",
            nature="stand-in" if standin else nature,
            prompts=prompts,
            samples=len(samples),
            samples_wanted=samples_wanted,
            status=status,
            resumed=run.get("resumed", 0),
            pools_restored="carried_pools" in run,
            pools_of_these_prompts=run.get("pools_of_these_prompts", []),
            timed=timed,
            fallbacks=[
                f"The {role}'s engine is {own['engine']}: {own['fallback']}."
                for role, own in model.get("engines", {}).items()
                if own.get("fallback")
            ],
            costs=costs,
            draft_cost=model.get("draft_cost"),
            published=published,
        )


def run_folders(path: Path) -> list[Path]:
    """Return `path`, if it contains a run, and every folder below that does (the jobs of a sweep).
    Symbolic links are followed.

    Raises `ValueError` if there is none.
    """
    paths = glob.glob(f"**/{RUN}", root_dir=path, recursive=True, include_hidden=True)
    found = sorted(Path(path, one).parent for one in paths)
    if not found:
        raise ValueError(f"{path} is not a results folder: no {RUN} in it or below it")
    return found


def load(path: Path) -> Measured:
    """Read one results folder. Raises a one-line `ValueError` that names the folder if it has no
    samples or is damaged."""
    folder = ResultsFolder(path)
    try:
        run, samples = folder.load_run(), folder.load_samples()
        if not stored(path / SAMPLES).exists():
            raise ValueError(f"{path} has no {SAMPLES}: only the folder that measured has it")
        if unknown := {sample.decoder for sample in samples} - set(run["decoders"]):
            names = ", ".join(sorted(unknown))
            raise ValueError(f"{SAMPLES} has decoders that {RUN} lacks: {names}")
        costs = folder.load_costs()
        about = costs.about if costs else {}
        measured = {"measured", "model"} & about.keys()
        own = "the costs measured with the run" if measured else "the given costs"
        words = f"the costs {about['name']!r}" if "name" in about else own
        priced = CostModel(costs, words) if costs else None
        audit, trees, scores = load_audit(folder), folder.load_trees(), folder.load_scores()
        found = Measured(path, run, samples, scores, audit, priced, trees)
        for name, kind in TYPES.items():
            if type(value := getattr(found.facts, name)) is not kind:
                raise TypeError(f"{name} is {value!r}")
    except Exception as error:  # damaged files raise anything
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is damaged ({error})"
        raise ValueError(f"{path} {what}: restore the folder or leave it out") from error
    return found
