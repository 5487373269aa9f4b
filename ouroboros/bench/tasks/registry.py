"""Find a task by name and select its prompts, as set by conf/task and `task.*`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path

from ouroboros.bench.tasks.dataset import AUTO, BUNDLED, found_path
from ouroboros.bench.tasks.task import Example, Task, select
from ouroboros.core.instantiate import check_whole, instantiate, unknown

TASKS = {
    "humaneval": "ouroboros.bench.tasks.humaneval.HumanEval",
    "mbpp": "ouroboros.bench.tasks.mbpp.MBPP",
    "gsm8k": "ouroboros.bench.tasks.gsm8k.GSM8K",
    "cnndm": "ouroboros.bench.tasks.cnndm.CNNDM",
    "wmt16": "ouroboros.bench.tasks.wmt16.WMT16",
    "specbench": "ouroboros.bench.tasks.specbench.SpecBench",
    "prompts": "ouroboros.bench.tasks.prompts.Prompts",
}
"""The class of each task. It is imported when the task is loaded, because scorers import slowly."""
GROUP = "ouroboros.tasks"
"""The entry-point group for tasks of other packages."""
PARTS = ("name", "version", "licence", "stop", "max_new", "load", "score")


@dataclass(frozen=True)
class TaskSpec:
    """A task and the selection of its prompts.

    `name` is one of `TASKS`, a name in the entry-point group ouroboros.tasks, or the dotted path of
    a `Task` class; `options` are the class's arguments. Every `stride`-th prompt (or conversation)
    is selected, at most `limit` (None: no limit); `shuffle` seeds a random order of the selected
    ones (None: the task's order).

    >>> task, examples = TaskSpec("prompts", {"path": "examples"}, limit=2).load()
    >>> len(examples)
    2
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    limit: int | None = None
    stride: int = 1
    shuffle: int | None = None

    def __post_init__(self) -> None:
        check_whole("task.limit", self.limit, null=True)
        check_whole("task.stride", self.stride)
        check_whole("task.shuffle", self.shuffle, least=0, null=True)

    @classmethod
    def from_mapping(cls, options: Mapping) -> TaskSpec:
        """Return the spec for a task's config: `_target_` is the name of the task; limit, stride
        and shuffle select its prompts; all other keys are `options`."""
        own = dict(options)
        choice = {key: own.pop(key) for key in ("limit", "stride", "shuffle") if key in own}
        return cls(str(own.pop("_target_", "")), own, **choice)

    def to_mapping(self) -> dict:
        """Return the config for this spec; the inverse of `from_mapping`."""
        choice = {"limit": self.limit, "stride": self.stride, "shuffle": self.shuffle}
        return {**self.options, **choice, "_target_": self.path}

    @property
    def path(self) -> str:
        """The dotted path of the task's class. Raises `ValueError` for an unknown name."""
        if self.name in TASKS or "." in self.name:
            return TASKS.get(self.name, self.name)
        plugins = {point.name: point.value.replace(":", ".") for point in entry_points(group=GROUP)}
        if self.name not in plugins:
            known = unknown(self.name, [*TASKS, *plugins])
            raise ValueError(f"there is no task {known}; or give task._target_=module.Class")
        return plugins[self.name]

    def for_tokenizer(self, tokenizer) -> TaskSpec:
        """Return the spec with the template that template=auto stands for: "chat" if the tokenizer
        has a chat template, else "plain"."""
        if self.options.get("template") != AUTO:
            return self
        template = "chat" if getattr(tokenizer, "chat_template", None) else "plain"
        return replace(self, options={**self.options, "template": template})

    def files(self) -> dict[str, Path]:
        """Return {"task.path": its path} if the option `path` names a file or folder that is not
        bundled with the task, else {}."""
        path = self.options.get("path")
        return {} if path in (None, "", BUNDLED) else {"task.path": found_path(str(path))}

    def load(self) -> tuple[Task, list[Example]]:
        """Return the task and its selected examples; template=auto is "plain" (see
        `for_tokenizer`). Raises `ValueError` for unusable options."""
        options = self.for_tokenizer(None).options
        task = instantiate({**options, "_target_": self.path}, "task")
        if lacking := [part for part in PARTS if not hasattr(task, part)]:
            raise ValueError(f"{self.path} is no task: it has no {', '.join(lacking)}")
        if isinstance(task.stop, str) or not all(s and isinstance(s, str) for s in task.stop):
            raise ValueError(f"task.stop={task.stop!r}: give a list of texts, none of them empty")
        check_whole("the task's max_new", task.max_new)
        chosen = select(task.load(), limit=self.limit, stride=self.stride, shuffle=self.shuffle)
        return task, chosen
