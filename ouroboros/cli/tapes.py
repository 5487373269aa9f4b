"""What drafters are replayed against: tapes of a recording, and what of them is imitated.

A recording is a results folder, a file of `ouroboros.bench.replay.recording`, or another engine's
JSONL of "prompt" and "completion".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ouroboros import vocab
from ouroboros.bench.replay.imitated_draft import ImitatedDraft
from ouroboros.bench.replay.imitation import Rates
from ouroboros.bench.replay.likeness import DraftErrorModel
from ouroboros.bench.replay.recorded_target import RecordedTarget
from ouroboros.bench.replay.recording import RecordedRuns, from_folder, read
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import check_files
from ouroboros.bench.run.pair import load_draft
from ouroboros.bench.run.prompts import Answers, prompt_ids
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.build import build_spec, build_task, lengthened
from ouroboros.engine.model import CachedModel


def load_tapes(
    recording: str | Path,
    decoders: Iterable[str],
    tokenizer,
    *,
    of: str | None = None,
    limit: int | None = None,
    task: dict | None = None,
) -> dict[str, RecordedRuns]:
    """Return the tape that each decoder is replayed against, of `limit` runs at most.

    Of a results folder it is that of the decoder `of`, or of its own name, or of greedy; `task` is
    needed where the run's own cannot be made. Raises `ValueError` for what is no recording.
    """
    path = Path(recording)
    if not path.is_dir():
        tape = read(path, tokenizer)
        return dict.fromkeys(decoders, replace(tape, runs=tape.runs[:limit]))
    folder = ResultsFolder(path)
    run = folder.load_run()
    named = vocab.fingerprint(tokenizer)
    if run["model"].get("tokenizer", named) != named:
        raise ValueError(f"{path} was recorded with another tokenizer: give its model=...")
    try:
        prompt_of = prompts(task or run["config"]["task"], folder, tokenizer)
    except ValueError as error:
        if task:
            raise
        raise ValueError(f"the recorded task cannot be made: {error}; give its task=...") from error
    tapes = {}
    for name in decoders:
        own = name if name in run["decoders"] else None
        tape = from_folder(folder, prompt_of, decoder=of or own)
        tapes[name] = replace(tape, runs=tape.runs[:limit])
    return tapes


def prompts(options: dict, folder: ResultsFolder, tokenizer) -> Callable[[str, int], list[int]]:
    """Return what gives the token ids of an example in a repeat, as the recorded run met it."""
    run = folder.load_run()
    check_files(TaskSpec.from_mapping(options).files(), run.get("contents", {}))
    task, examples = build_task(options)
    examples = lengthened(run["config"], task, examples, tokenizer)
    answers = Answers(task, examples, run["decoders"][0], folder.load_samples())
    known = {example.id: example for example in examples}

    def prompt_of(name: str, repeat: int) -> list[int]:
        if name not in known:
            raise ValueError(
                f"{name} was recorded, but is not among the {len(known)} examples chosen here: "
                "give task, task.limit and task.stride of the recorded run (limit=<n> replays "
                "fewer of its prompts)"
            )
        return prompt_ids(tokenizer, answers.asked(known[name], repeat))

    return prompt_of


def given_rates(given: Sequence[float] | None) -> Rates | None:
    """Return two shares as rates. Raises `ValueError` for anything else."""
    try:
        return None if given is None else Rates(*map(float, given))
    except (TypeError, ValueError) as error:
        raise ValueError(f"rates={given}: give two shares, as rates=[0.7,0.04]") from error


def loaded_draft(model: dict, tape: RecordedRuns, tokenizer) -> CachedModel:
    """Load the draft of a config's `model`. Raises `ValueError` where it is not of one family with
    the tape's target."""
    draft = load_draft(build_spec(model))
    vocab.check_pair(RecordedTarget(tape, tokenizer=tokenizer), draft)  # type: ignore[arg-type]
    return draft


def imitated_draft(options: dict, tape: RecordedRuns, tokenizer) -> CachedModel:
    """Return a draft imitated on a tape; `options` are those of conf/draft."""
    own, given = dict(options), options.get("likeness")
    own["likeness"] = DraftErrorModel.load(Path(given)) if given else None
    ids = 1 + max(tokenizer.get_vocab().values())
    sizes = {"vocab_size": min(ids, tape.vocab_size), "max_len": tape.max_len}
    try:
        return ImitatedDraft(runs=tape.runs, tokenizer=tokenizer, **sizes, **own)
    except TypeError as error:
        raise ValueError(f"draft: {error}") from error
