"""The options of every command, with their types and defaults, in Hydra's ConfigStore.

conf/<command>.yaml composes them with the config groups. Importing this module does not import
torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from ouroboros.bench.run.config import PairSpec, RunConfig


@dataclass
class GenerateOptions(RunConfig):
    """`ouroboros generate`: the options of a run, for one prompt."""

    race: bool = False  # also run greedy decoding


@dataclass
class ReplayOptions:
    """`ouroboros replay`."""

    model: PairSpec = MISSING  # the draft, and the target's tokenizer; the target is not loaded
    task: dict[str, Any] | None = None  # None: the recorded run's task
    decoder: dict[str, dict[str, Any]] = field(default_factory=dict)
    recording: str | None = None  # required: a results folder, or JSONL of prompt and completion
    max_new: int | None = None  # None: as recorded
    limit: int | None = None  # number of recorded completions; None: all
    costs: Any = None  # a name, a costs.json, a small table, or a timed results folder
    threads: int | None = None

    def __post_init__(self) -> None:
        if not self.recording:
            raise ValueError("give recording=<results folder, or JSONL file>")


@dataclass
class TuneOptions:
    """`ouroboros tune`."""

    model: PairSpec = MISSING
    decoder: dict[str, dict[str, Any]] = field(default_factory=dict)
    prompts: list[str] | None = None  # JSONL; None: conf/task/development*
    costs: list[str] = field(default_factory=lambda: ["epyc", "flat"])  # searched separately
    trials: int = 24  # settings tried before the search
    first: int = 6  # prompts per file in the search
    limit: int | None = None  # prompts per file; None: all
    max_new: int = 96
    temperatures: list[float] = field(default_factory=lambda: [0.0, 0.4, 0.8])
    seed: int = 0
    threads: int | None = None
    results_dir: str = "results/local/tuning"


@dataclass
class DistillOptions:
    """`ouroboros distill`."""

    model: PairSpec = MISSING
    layers: Any = 4  # how many of the target's layers: the first ones and the last; or a list
    head: int = 16384  # how many ids the draft scores: the most frequent ones in the texts
    prompts: str | None = None  # as task.path of task=prompts; None: the target makes its own
    minutes: float = 30.0  # time to spend, without the report
    tokens: int | None = None  # instead of minutes: tokens that the target writes
    max_new: int = 256  # most tokens of a text
    out: str | None = None  # folder of the draft; None: drafts/<name of the target>
    seed: int = 0
    threads: int | None = None


@dataclass
class ReportOptions:
    """`ouroboros report`."""

    out: str | None = None  # report folder; None: beside the results folders
    costs: str | None = None  # costs for predictions: a name, or a costs.json
    remake: bool = False  # rewrite each folder's summary and plot
    tokenizer: str | None = None  # the runs' tokenizer; None: the one named in run.json
    wide: bool = False  # print every table of every run


SCHEMAS: dict[str, type] = {
    "bench": RunConfig,
    "generate": GenerateOptions,
    "replay": ReplayOptions,
    "tune": TuneOptions,
    "distill": DistillOptions,
    "report": ReportOptions,
}
for name, schema in SCHEMAS.items():
    ConfigStore.instance().store(name=f"{name}_options", node=schema)
