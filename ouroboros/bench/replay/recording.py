"""Recorded runs: a target's prompts and continuations, enough to replay drafters without the
target. `read_recording` reads a results folder, or JSONL of texts from any engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.replay.scripted import ANY, ScriptedModel
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import check_found
from ouroboros.bench.run.prompts import Answers, PromptBuilder
from ouroboros.bench.run.tree_recorder import PrefixKey
from ouroboros.bench.tasks.dataset import read_rows
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.models import vocab

PromptOf = Callable[[str, int], Sequence[int]]
"""A function (example id, repeat) -> the token ids of the prompt."""


@dataclass(frozen=True)
class RecordedRun:
    """One prompt and its continuation, as token ids. `predictions` has, by prefix key, the
    target's predictions that the text does not contain."""

    example: str
    prompt: tuple[int, ...]
    new_tokens: tuple[int, ...]
    finish: str = "stop"
    repeat: int = 0
    predictions: Mapping[PrefixKey, int] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt and the continuation."""
        return (*self.prompt, *self.new_tokens)


@dataclass(frozen=True)
class RecordedRuns:
    """Runs of one target with the same settings.

    `max_new` is their limit of new tokens (None: the length of each run), `max_len` the model's
    limit of prompt and new tokens together, `engine` the target's engine, such as "fused".
    """

    runs: Sequence[RecordedRun]
    sampling: Sampling = field(default_factory=Sampling)
    max_new: int | None = None
    max_len: int = ANY
    vocab_size: int = ANY
    eos: frozenset[int] = frozenset()
    dtype: str | None = None
    engine: str = "eager"

    def target(self, tokenizer=None) -> ScriptedModel:
        """Return a target that computes nothing, with the recorded context length and
        vocabulary."""
        facts: dict = {"vocab_size": self.vocab_size, "engine": self.engine}
        return ScriptedModel(self.max_len, **facts, tokenizer=tokenizer)


def read_recording(
    path: Path | str,
    tokenizer,
    *,
    task: TaskSpec | None = None,
    limit: int | None = None,
) -> dict[str, RecordedRuns]:
    """Return the first `limit` recorded runs of each decoder; a file's runs count as "greedy".

    A results folder stores no prompts: they come from `task`, by default the run's task. A JSONL
    line has "prompt" and "completion", and optionally "id". Raises `ValueError` for any other
    content, naming the line, and for prompts or a tokenizer that differ from the recorded ones.
    """
    path = Path(path)
    if path.is_dir():
        folder = ResultsFolder(path)
        prompt_of, order = _prompts_of_run(folder, task, tokenizer)

        def place(run: RecordedRun) -> tuple[int, int]:
            return run.repeat, order.index(run.example)

        found = {  # samples of a batch end in any order
            name: replace(one, runs=sorted(one.runs, key=place))
            for name, one in of_folder(folder, prompt_of).items()
        }
    else:
        found = {PLAIN: _of_file(path, tokenizer)}
    return {name: replace(one, runs=one.runs[:limit]) for name, one in found.items()}


def runs_of(recording: Mapping[str, RecordedRuns], decoder: str = PLAIN) -> RecordedRuns:
    """Return the runs of `decoder`, else greedy's, else the first decoder's."""
    return recording.get(decoder) or recording.get(PLAIN) or next(iter(recording.values()))


def _prompts_of_run(
    folder: ResultsFolder, task: TaskSpec | None, tokenizer
) -> tuple[PromptOf, list[str]]:
    """Return a function that looks up the prompts of a results folder's run, and the ids of the
    task's prompts in order. Raises `ValueError` for another tokenizer than the recorded one, or
    if the task cannot be made."""
    run, fingerprint = folder.load_run(), vocab.fingerprint(tokenizer)
    if run["model"].get("tokenizer", fingerprint) != fingerprint:
        raise ValueError(f"{folder.path} was recorded with another tokenizer: give its model=...")
    spec = task or TaskSpec.from_mapping(run["config"]["task"])
    try:
        check_found(spec.files(), run)
        made, examples = spec.for_tokenizer(tokenizer).load()
    except ValueError as error:
        if task:
            raise
        raise ValueError(f"the recorded task cannot be made: {error}; give its task=...") from error
    samples = {sample.key: sample for sample in folder.load_samples()}
    answers = Answers(made, examples, run["decoders"][0], samples)
    prompts = PromptBuilder(tokenizer, getattr(made, "template_args", {}), folder.load_prompts())
    by_id = {example.id: example for example in examples}

    def prompt_of(example: str, repeat: int) -> list[int]:
        if example not in by_id:
            raise ValueError(
                f"{example} was recorded, but is not among the {len(by_id)} prompts chosen here: "
                "give task, task.limit and task.stride of the recorded run (limit=<n> replays "
                "fewer of its prompts)"
            )
        return prompts.ids(answers.with_history(by_id[example], repeat))

    return prompt_of, list(by_id)


def of_folder(folder: ResultsFolder, prompt_of: PromptOf) -> dict[str, RecordedRuns]:
    """Return a results folder's runs by decoder, without decoders that used rejection sampling:
    a replay cannot repeat their random draws. Raises `ValueError` if no decoder is left, or if a
    prompt's length differs."""
    run, predictions = folder.load_run(), folder.load_predictions()
    samples, model = folder.load_samples(), run["model"]
    limits = run["max_new"], model["max_len"], model["vocab_size"]
    settings = Sampling(**run["sampling"]), *limits, frozenset(model["eos"])
    made = model["dtype"], folder.engines().get("target", "eager")
    runs: dict[str, list[RecordedRun]] = {name: [] for name in run["decoders"]}
    for one in samples:
        if one.error:
            continue
        prompt = tuple(prompt_of(one.example, one.repeat))
        if len(prompt) != one.prompt_tokens:
            raise ValueError(
                f"{one.example} has {len(prompt)} prompt tokens here and {one.prompt_tokens} in "
                "the recording: give the task and model that were recorded"
            )
        text = one.example, prompt, one.new_tokens, one.finish, one.repeat
        runs[one.decoder].append(RecordedRun(*text, predictions.get(one.key, {})))
    found = {name: RecordedRuns(own, *settings, *made) for name, own in runs.items()}
    configs = run.get("config", {}).get("decoder", {}) if settings[0].temperature else {}
    rejecting = {n for n, one in configs.items() if one.get("verification") == "rejection"}
    if not (shared := {name: runs for name, runs in found.items() if name not in rejecting}):
        raise ValueError(f"{folder.path} has no texts sampled with shared noise: record greedy too")
    return shared


def _of_file(path: Path, tokenizer) -> RecordedRuns:
    """Return the runs of a JSONL file of texts; no chat template is applied."""
    runs: list[RecordedRun] = []
    for number, (where, row) in enumerate(read_rows(path), start=1):
        try:
            prompt = vocab.encode(tokenizer, row["prompt"])
            new = tokenizer(row["completion"], add_special_tokens=False).input_ids
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f'{where}: give {{"prompt": text, "completion": text}}') from error
        runs.append(RecordedRun(str(row.get("id", f"{path.stem}/{number}")), (*prompt,), (*new,)))
    if not runs:
        raise ValueError(f"the recording {path} is empty: record some runs first")
    return RecordedRuns(runs)
