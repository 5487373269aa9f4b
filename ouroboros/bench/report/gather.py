"""Read the measurements in folders: single runs, and the jobs of sweeps."""

from __future__ import annotations

import glob
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from ouroboros.audit.report import Row
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.audit import load_audit
from ouroboros.bench.run.folder import RUN, SAMPLES, ResultsFolder, SampleKey, stored
from ouroboros.bench.run.identity import BUSY
from ouroboros.bench.run.pair import SHIPPED, model_names
from ouroboros.bench.run.tree_recorder import ProposedTree
from ouroboros.costs import CostModel


@dataclass(frozen=True)
class Measured:
    """One measurement: run.json, samples, scores, audit and trees of a results folder. `priced`
    is the cost model that predicts seconds from counts (None: no predictions)."""

    folder: Path
    run: dict
    samples: list[Sample]
    scores: dict[SampleKey, dict[str, float]] = field(default_factory=dict)
    audit: list[Row] = field(default_factory=list)
    priced: CostModel | None = None
    trees: dict[SampleKey, list[ProposedTree]] = field(default_factory=dict)

    @cached_property
    def facts(self) -> SimpleNamespace:
        """What was measured and where, in the order of summary.json.

        `title` is one line, joined by " · ". `nature` is "model", "stand-in" (a small model
        embedded in a larger one) or "rehearsal" (an experiment with published numbers, run on the
        reference pair). `costs` names the costs that predict seconds from counts (None: they
        predict nothing); `draft_cost` is the recorded cost of a draft call in target calls. `busy`
        says that other programs used much of the machine, or is ""; `fallbacks` says why engines
        are slower.
        """
        run, samples, config = self.run, self.samples, self.run.get("config", {})
        task, model, timed = run["task"], run["model"], run.get("timing", True)
        prompts, wanted = len({s.example for s in samples if not s.error}), task["prompts"]
        count = f"{prompts}" if prompts == wanted else f"{prompts} of {wanted}"
        what = f"{task['name']}, {count} prompt{'s' * (wanted != 1)}"
        what += f" x up to {run['max_new']} tokens"
        if (template := task.get("template", "plain")) != "plain":
            what += ", chat template" if template == "chat" else f", template {template}"
            given = task.get("template_args") or {}
            what += "".join(f", {name}={json.dumps(value)}" for name, value in given.items())
        size, parallel = config.get("batch_size", 1), run.get("parallel")
        batch = f"batch size {size}" + ", refilled" * (size > 1 and config.get("refill", False))
        if config.get("parallel"):
            batch += f", parallel={config['parallel']}"

        standin, published, nature = model.get("standin"), run.get("published"), "model"
        models = model_names(model)
        if standin:
            models += " as a stand-in, shapes " + " / ".join(filter(None, standin.values()))
            nature = "stand-in"
        elif published and str(model.get("target")).startswith(SHIPPED):
            models, nature = f"{models} (a rehearsal)", "rehearsal"
        made = model.get("engines", {}).get("target", {})
        engine, exact = made.get("engine", "eager"), " (exact calls)" * made.get("exact", False)
        arithmetic = [model["dtype"]]
        arithmetic += [f"{role} {how}" for role, how in (model.get("quantised") or {}).items()]
        arithmetic += [f"{engine} engine{exact}"] * (engine != "eager")
        sampling = run["sampling"]
        warm = sampling["temperature"]
        words = f"T={warm:g}" if warm else "greedy (T=0)"
        usual = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} if warm else {}
        for name, off in {**usual, "repetition_penalty": 1.0}.items():
            if (value := sampling.get(name, off)) != off:
                words += f", {name.replace('repetition_', 'repetition ')}={value:g}"

        machine, versions = (run["provenance"][key] for key in ("machine", "versions"))
        cpu, threads = f"{machine['cpu']}, {machine['cores']} cores", machine["threads"]
        on_gpu = model["device"].startswith("cuda") and machine["gpus"]
        device = machine["gpus"][int(model["device"].partition(":")[2] or 0)] if on_gpu else cpu
        device += f", {parallel['ranks']} processes" if parallel else ""
        others = run.get("load", {}).get("other_percent", 0.0) if timed else 0.0
        busy = f"machine was busy ({others:.0f} % by other programs)" if others > BUSY else ""
        priced = self.priced if size == 1 else None  # costs are for calls of a single sequence
        ours = [s for s in samples if any(step.scored for step in s.steps)]
        by_decoder = [[s for s in ours if s.decoder == name] for name in run["decoders"]]
        if priced and all(priced.why_not(own) for own in by_decoder if own):
            priced = None
        costs = priced and priced.name
        bare = ", without prefill" if priced and not priced.costs.prefill_ms else ""
        bare += ", for one process" * bool(parallel)
        predicted = f"predicted with {costs}{bare}" if costs and not timed else ""
        title = [what, models, ", ".join(arithmetic), words, batch, device, busy, predicted]
        status = run.get("status", "finished")
        wanted_samples = run.get("samples_wanted", len(samples))
        return SimpleNamespace(
            title=" · ".join(filter(None, title)),
            incomplete=len(samples) < wanted_samples or status != "finished",
            task=task["name"],
            what=what,
            models=models,
            sampling=words,
            batch_size=size,
            device=device,
            busy=busy,
            footnote=f"{cpu}, {threads} thread{'s' * (threads > 1)}; torch {versions['torch']}, "
            f"transformers {versions['transformers']}",
            nature=nature,
            prompts=prompts,
            samples=len(samples),
            samples_wanted=wanted_samples,
            status=status,
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
    """Return every folder that contains a run: `path` or folders below it (the jobs of a sweep),
    or else `path`. Symbolic links are followed."""
    paths = glob.glob(f"**/{RUN}", root_dir=path, recursive=True, include_hidden=True)
    return sorted(Path(path, one).parent for one in paths) or [path]


def load(path: Path) -> Measured:
    """Read one results folder. Raises a one-line `ValueError` that names the folder if it has no
    samples or is damaged."""
    folder = ResultsFolder(path)
    try:
        run = folder.load_run()
        if not stored(path / SAMPLES).exists():
            raise ValueError(f"{path} has no {SAMPLES}: only the folder that measured has it")
        costs = folder.load_costs()
        about = costs.about if costs else {}
        own = bool({"measured", "model"} & about.keys())
        words = "the costs measured with the run" if own else "the given costs"
        words = f"the costs {about['name']!r}" if "name" in about else words
        found = Measured(
            path,
            run,
            folder.load_samples(),
            folder.load_scores(),
            load_audit(folder),
            CostModel(costs, words) if costs else None,
            folder.load_trees(),
        )
        assert found.facts.title
    except Exception as error:  # damaged files raise anything
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is damaged ({error})"
        raise ValueError(f"{path} {what}: restore the folder or leave it out") from error
    return found
