"""What was measured, where and how completely: the facts of a run, from which titles are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from ouroboros.bench.metrics.sample import Sample


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run, or of merged parts.

    `prompts` and `samples` were measured, `prompts_wanted` and `samples_wanted` asked for.
    `nature` says what the models are: "model"; "stand-in" (a small model computed inside a large
    shape, `shapes`); "rehearsal" (published numbers to compare with, but the pair that ships with
    the project). `arithmetic` holds dtype, quantisation and engine. `costs` names the costs that
    turn counts into seconds; `draft_cost` is a draft call in target calls, where recorded.
    """

    task: str
    prompts: int
    prompts_wanted: int
    context_tokens: int | None
    max_new: int
    repeats: int
    pair: str
    nature: str
    shapes: str
    arithmetic: str
    sampling: str
    device: str
    hosts: str
    versions: str
    parts: int
    status: str
    resumed: int
    pools_restored: bool
    timed: bool
    samples: int
    samples_wanted: int
    costs: str | None = None
    draft_cost: float | None = None
    published: Mapping | None = None

    @classmethod
    def of(cls, run: Mapping, samples: Iterable[Sample], costs: str | None = None) -> RunFacts:
        """Return the facts of a run.json and its samples; `costs` in words."""
        samples = list(samples)
        model, sampling = run["model"], run["sampling"]
        standin, published = model.get("standin"), run.get("published")
        ships = str(model.get("target", "")).startswith("reference/")
        penalty = sampling.get("repetition_penalty", 1.0)
        temperature = sampling["temperature"]
        engine = model.get("engines", {}).get("target", {"engine": model.get("engine", "eager")})
        quantised = [f"{role} {how}" for role, how in (model.get("quantised") or {}).items()]
        engines = [] if engine["engine"] == "eager" else [f"{engine['engine']} engine"]
        machines = run.get("machines") or [run["provenance"]["machine"]]
        hosts = (
            f"{m['cpu']}, {m['cores']} cores, {m['threads']} thread{'s' * (m['threads'] > 1)}"
            for m in machines
        )
        versions = run["provenance"]["versions"]
        return cls(
            task=run["task"]["name"],
            prompts=len({sample.example for sample in samples if not sample.error}),
            prompts_wanted=run["task"]["prompts"],
            context_tokens=run.get("config", {}).get("context_tokens"),
            max_new=run["max_new"],
            repeats=run.get("repeats", 1),
            pair=_pair_name(model),
            nature="stand-in" if standin else "rehearsal" if published and ships else "model",
            shapes=f"{standin['target']} / {standin['draft']}" if standin else "",
            arithmetic=", ".join([model["dtype"], *quantised, *engines]),
            sampling=(f"T={temperature:g}" if temperature else "greedy (T=0)")
            + ("" if penalty == 1.0 else f", repetition penalty {penalty:g}"),
            device=" + ".join(dict.fromkeys(_device(one, model) for one in machines)),
            hosts=" + ".join(dict.fromkeys(hosts)),
            versions=f"torch {versions['torch']}, transformers {versions['transformers']}",
            parts=run.get("parts", 1),
            status=run.get("status", "finished"),
            resumed=run.get("resumed", 0),
            pools_restored="carried_pools" in run,
            timed=run.get("timing", True),
            samples=len(samples),
            samples_wanted=run.get("samples_wanted", len(samples)),
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
        """Whether the costs were measured in this timed run: its predictions are a fit."""
        return self.timed and "with the run" in (self.costs or "")

    @property
    def what(self) -> str:
        """Task, prompts and their lengths: "gsm8k, 60 prompts x 128 tokens"."""
        whole = self.prompts == self.prompts_wanted
        count = f"{self.prompts}" if whole else f"{self.prompts} of {self.prompts_wanted}"
        plural = "s" * (self.prompts_wanted != 1)
        length = f" of {self.context_tokens} tokens" if self.context_tokens else ""
        return f"{self.task}, {count} prompt{plural}{length} x {self.max_new} tokens"

    @property
    def models(self) -> str:
        """The pair, and what stands in for it."""
        shapes = f" as a stand-in, shapes {self.shapes}" if self.shapes else ""
        rehearsal = " (a rehearsal)" if self.nature == "rehearsal" else ""
        return f"{self.pair} pair{shapes}{rehearsal}"

    @property
    def setting(self) -> tuple[str, ...]:
        """Pair, arithmetic and sampling: what comparable runs share."""
        return self.models, self.arithmetic, self.sampling

    @property
    def title_parts(self) -> tuple[str, ...]:
        """The parts of the title, in order."""
        predicted = (f"predicted by {self.costs}",) if self.costs and not self.timed else ()
        return self.what, *self.setting, "batch size 1", self.device, *predicted

    @property
    def title(self) -> str:
        """One line: task, pair, dtype, sampling, machine."""
        return " · ".join(self.title_parts)

    @property
    def footnote(self) -> str:
        """One line: host and versions."""
        merged = f"{self.parts} parts, merged; " if self.parts > 1 else ""
        return f"{merged}{self.hosts}; {self.versions}"

    def to_dict(self) -> dict:
        """Return all facts, title and footnote first, as plain JSON values."""
        made = {"title": self.title, "footnote": self.footnote, "incomplete": self.incomplete}
        return {**made, **asdict(self)}


def _pair_name(model: Mapping) -> str:
    """The name of a pair: that of its config, or of the models where they are the user's."""
    name, target = model["name"], model.get("target")
    own = name == "hf" or (name == "reference" and not str(target).startswith("reference/"))
    if not own or not target:
        return name
    return " + ".join(str(one).split("/")[-1] for one in (target, model.get("draft")) if one)


def _device(machine: Mapping, model: Mapping) -> str:
    """The GPU or CPU that ran the models."""
    if model["device"].startswith("cuda") and machine["gpus"]:
        return machine["gpus"][0]
    return f"{machine['cpu']}, {machine['cores']} cores"
