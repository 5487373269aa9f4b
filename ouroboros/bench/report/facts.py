"""What was measured, where and how completely: the facts of a run, from which titles are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from ouroboros.bench.metrics.sample import Sample


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run, or of merged parts.

    `what` is task, prompts and lengths, `models` the pair, `arithmetic` dtype, quantisation and
    engine. `nature` says what the models are: "model"; "stand-in" (a small model computed inside a
    large shape); "rehearsal" (published numbers to compare with, but the pair that ships with the
    project). `prompts` and `samples` were measured. `costs` names the costs that turn counts into
    seconds; `draft_cost` is a draft call in target calls, where recorded.
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
    def of(cls, run: Mapping, samples: Iterable[Sample], costs: str | None = None) -> RunFacts:
        """Return the facts of a run.json and its samples; `costs` in words."""
        samples, task, model = list(samples), run["task"], run["model"]
        prompts = len({sample.example for sample in samples if not sample.error})
        machines = run.get("machines") or [run["provenance"]["machine"]]
        parts, published = run.get("parts", 1), run.get("published")
        ships = str(model.get("target", "")).startswith("reference/")
        nature = "rehearsal" if published and ships else "model"
        return cls(
            task=task["name"],
            what=_what(run, prompts),
            models=_models(model) + (" (a rehearsal)" if nature == "rehearsal" else ""),
            arithmetic=_arithmetic(model),
            sampling=_sampling(run["sampling"]),
            device=" + ".join(dict.fromkeys(_device(one, model) for one in machines)),
            footnote=(f"{parts} parts, merged; " if parts > 1 else "") + _footnote(run, machines),
            nature="stand-in" if model.get("standin") else nature,
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
        """Whether the costs were measured in this timed run: its predictions are a fit."""
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


def _what(run: Mapping, prompts: int) -> str:
    wanted, length = run["task"]["prompts"], run.get("config", {}).get("context_tokens")
    count = f"{prompts}" if prompts == wanted else f"{prompts} of {wanted}"
    each = f" of {length} tokens" if length else ""
    return (
        f"{run['task']['name']}, {count} prompt{'s' * (wanted != 1)}{each} x {run['max_new']} "
        "tokens"
    )


def _models(model: Mapping) -> str:
    """The pair's name: that of its config, or of the models where they are the user's."""
    name, target, standin = model["name"], model.get("target"), model.get("standin")
    own = name == "hf" or (name == "reference" and not str(target).startswith("reference/"))
    if own and target:
        both = (one for one in (target, model.get("draft")) if one)
        name = " + ".join(str(one).split("/")[-1] for one in both)
    if standin:
        return f"{name} pair as a stand-in, shapes {standin['target']} / {standin['draft']}"
    return f"{name} pair"


def _arithmetic(model: Mapping) -> str:
    engine = model.get("engines", {}).get("target", {"engine": model.get("engine", "eager")})
    quantised = [f"{role} {how}" for role, how in (model.get("quantised") or {}).items()]
    engines = [] if engine["engine"] == "eager" else [f"{engine['engine']} engine"]
    return ", ".join([model["dtype"], *quantised, *engines])


def _sampling(sampling: Mapping) -> str:
    temperature, penalty = sampling["temperature"], sampling.get("repetition_penalty", 1.0)
    words = f"T={temperature:g}" if temperature else "greedy (T=0)"
    return words + ("" if penalty == 1.0 else f", repetition penalty {penalty:g}")


def _device(machine: Mapping, model: Mapping) -> str:
    """The GPU or CPU that ran the models."""
    if model["device"].startswith("cuda") and machine["gpus"]:
        return machine["gpus"][0]
    return f"{machine['cpu']}, {machine['cores']} cores"


def _footnote(run: Mapping, machines: Iterable[Mapping]) -> str:
    """Hosts and versions."""
    versions = run["provenance"]["versions"]
    hosts = (
        f"{m['cpu']}, {m['cores']} cores, {m['threads']} thread{'s' * (m['threads'] > 1)}"
        for m in machines
    )
    return (
        f"{' + '.join(dict.fromkeys(hosts))}; torch {versions['torch']}, transformers "
        f"{versions['transformers']}"
    )
