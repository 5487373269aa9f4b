"""What was measured, where and how completely: the facts of a run, from which titles are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ouroboros.bench.metrics.sample import Sample


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run, or of merged parts.

    `what` is task, prompts and lengths, `models` the pair, `arithmetic` dtype, quantisation and
    engine. `nature` says what the models are: "model"; "stand-in" (a small model computed inside a
    large shape); "rehearsal" (an experiment with published numbers, run on the pair that ships with
    the project). `prompts` and `samples` were measured. `costs` names the costs that turn counts
    into seconds; `draft_cost` is the cost of a draft call in target calls, where recorded.
    """

    task: str
    what: str
    models: str
    arithmetic: str
    sampling: str
    device: str
    footnote: str
    nature: str
    parts: int
    prompts: int
    samples: int
    samples_wanted: int
    status: str
    resumed: int
    pools_restored: bool
    timed: bool
    costs: str | None
    draft_cost: float | None
    published: Mapping | None

    @classmethod
    def of(cls, run: Mapping, samples: Sequence[Sample], costs: str | None = None) -> RunFacts:
        """Return the facts of a run.json and its samples; `costs` in words."""
        task, model, sampling = run["task"], run["model"], run["sampling"]
        prompts, wanted = len({s.example for s in samples if not s.error}), task["prompts"]
        count = f"{prompts}" if prompts == wanted else f"{prompts} of {wanted}"
        length = run.get("config", {}).get("context_tokens")
        each = f"prompt{'s' * (wanted != 1)}{f' of {length} tokens' if length else ''}"

        pair, target, standin = model["name"], str(model.get("target") or ""), model.get("standin")
        published, ships = run.get("published"), target.startswith("reference/")
        if target and (pair == "hf" or (pair == "reference" and not ships)):  # the user's models
            pair = " + ".join(n.split("/")[-1] for n in (target, model.get("draft")) if n)
        models, nature = f"{pair} pair", "model"
        if standin:
            models += f" as a stand-in, shapes {standin['target']} / {standin['draft']}"
        if published and ships:
            models, nature = f"{models} (a rehearsal)", "rehearsal"

        engine = model.get("engines", {}).get("target", model).get("engine", "eager")
        quantised = [f"{role} {how}" for role, how in (model.get("quantised") or {}).items()]
        engines = [] if engine == "eager" else [f"{engine} engine"]
        temperature, penalty = sampling["temperature"], sampling.get("repetition_penalty", 1.0)
        words = f"T={temperature:g}" if temperature else "greedy (T=0)"

        devices, hosts = [], []
        for machine in run.get("machines") or [run["provenance"]["machine"]]:
            cpu, threads = f"{machine['cpu']}, {machine['cores']} cores", machine["threads"]
            on_gpu = model["device"].startswith("cuda") and machine["gpus"]
            devices.append(machine["gpus"][0] if on_gpu else cpu)
            hosts.append(f"{cpu}, {threads} thread{'s' * (threads > 1)}")
        parts, versions = run.get("parts", 1), run["provenance"]["versions"]
        merged = f"{parts} parts, merged; " if parts > 1 else ""
        return cls(
            task=task["name"],
            what=f"{task['name']}, {count} {each} x {run['max_new']} tokens",
            models=models,
            arithmetic=", ".join([model["dtype"], *quantised, *engines]),
            sampling=words + ("" if penalty == 1.0 else f", repetition penalty {penalty:g}"),
            device=" + ".join(dict.fromkeys(devices)),
            footnote=f"{merged}{' + '.join(dict.fromkeys(hosts))}; torch {versions['torch']}, "
            f"transformers {versions['transformers']}",
            nature="stand-in" if standin else nature,
            parts=parts,
            prompts=prompts,
            samples=len(samples),
            samples_wanted=run.get("samples_wanted", len(samples)),
            status=run.get("status", "finished"),
            resumed=run.get("resumed", 0),
            pools_restored="carried_pools" in run,
            timed=run.get("timing", True),
            costs=costs,
            draft_cost=model.get("draft_cost"),
            published=published,
        )

    @property
    def incomplete(self) -> bool:
        """Whether samples are missing or the run has not ended."""
        return self.samples < self.samples_wanted or self.status != "finished"

    @property
    def fitted(self) -> bool:
        """Whether the costs were measured in this timed run, so that its predictions are a fit."""
        return self.timed and "with the run" in (self.costs or "")

    @property
    def title_parts(self) -> tuple[str, ...]:
        """The parts of the title, in order."""
        predicted = (f"predicted by {self.costs}",) if self.costs and not self.timed else ()
        setting = (self.models, self.arithmetic, self.sampling, "batch size 1", self.device)
        return self.what, *setting, *predicted

    @property
    def title(self) -> str:
        """One line: task, pair, dtype, sampling, machine."""
        return " · ".join(self.title_parts)

    def to_dict(self) -> dict:
        """Return all facts, the title first, as plain JSON values."""
        return {"title": self.title, "incomplete": self.incomplete, **asdict(self)}
