"""What a target once said: enough to run a drafter against it again, without the target.

A tape holds prompts and continuations as token ids and the settings that the loop needs. Its file
is JSONL, a header line and one line for each run; a results folder is a tape too, and so is another
engine's text. Invariant: what a tape does not know (a length limit, a context) it does not invent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.metrics.scripted import ANY
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.recorder import PrefixKey, listed, unlisted

FORMAT = "ouroboros-recording-1"
SPARE = 64  # ids that a renumbered vocabulary has beyond a text's own


@dataclass(frozen=True)
class Recording:
    """One run: `finish` is "eos", "length", "context", or "stop" where the text just ends.

    `group` is the example's category, "" where it has none.
    """

    example: str
    prompt: tuple[int, ...]
    new_tokens: tuple[int, ...]
    finish: str = "stop"
    repeat: int = 0
    predictions: Mapping[PrefixKey, int] = field(default_factory=dict)
    group: str = ""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and continuation."""
        return (*self.prompt, *self.new_tokens)


@dataclass(frozen=True)
class RecordedRuns:
    """Runs of one target under one set of settings. `max_new` None: as long as each run is.

    `dtype` is that of the models, by torch's name; None where it is not known.
    """

    runs: Sequence[Recording]
    sampling: Sampling = field(default_factory=Sampling)
    max_new: int | None = None
    max_len: int = ANY
    vocab_size: int = ANY
    eos: frozenset[int] = frozenset()
    dtype: str | None = None

    def save(self, path: Path) -> None:
        """Write the tape as JSONL."""
        head = {
            "format": FORMAT,
            "sampling": asdict(self.sampling),
            **{name: getattr(self, name) for name in ("max_new", "max_len", "vocab_size")},
            "eos": sorted(self.eos),
            "dtype": self.dtype,
        }
        lines = [head, *({**asdict(r), "predictions": listed(r.predictions)} for r in self.runs)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def renumbered(tape: RecordedRuns) -> RecordedRuns:
    """Return the tape with each run's ids numbered in the order of their appearance.

    No decoder knows an id by its number, and rows of logits become hundreds wide instead of tens of
    thousands. For counts alone, and only where nothing is carried from run to run.
    """
    runs, size = [], 0
    for run in tape.runs:
        names = {token: number for number, token in enumerate(sorted(tape.eos))}

        def renamed(tokens: Sequence[int], names: dict[int, int] = names) -> tuple[int, ...]:
            return tuple(names.setdefault(token, len(names)) for token in tokens)

        prompt, new = renamed(run.prompt), renamed(run.new_tokens)
        said = {(at, renamed(off)): renamed([t])[0] for (at, off), t in run.predictions.items()}
        runs.append(replace(run, prompt=prompt, new_tokens=new, predictions=said))
        size = max(size, len(names))
    return replace(tape, runs=runs, vocab_size=size + SPARE, eos=frozenset(range(len(tape.eos))))


def read(path: Path, tokenizer) -> RecordedRuns:
    """Read a tape, or JSONL with the fields "prompt" and "completion" as text.

    "id" and "category" may be given. In place of prompt and completion there may be "turns", a list
    of such pairs: a later turn's prompt is all that was said before it, and its number the run's
    `repeat`. Text is tokenized anew: prompts with the tokenizer's special tokens, completions
    without. Raises `ValueError`, naming the line, for anything else.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # U+2028 may stand inside a string
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the recording {path}: give JSONL ({error})") from error
    if not rows:
        raise ValueError(f"the recording {path} is empty: record some runs first")
    if isinstance(rows[0], dict) and rows[0].get("format") == FORMAT:
        return _tape(path, rows)
    runs: list[Recording] = []
    for number, row in enumerate(rows, start=1):
        try:
            name = str(row.get("id", f"{path.stem}/{number}"))
            runs += _turns(name, str(row.get("category", "")), row.get("turns", [row]), tokenizer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f'{path}, line {number}: give {{"prompt": text, "completion": text}}, or "turns", '
                "a list of these"
            ) from error
    return RecordedRuns(runs)


def _turns(name: str, group: str, turns: Sequence[dict], tokenizer) -> Iterator[Recording]:
    """Yield the runs of one conversation, as plain text with no chat template."""
    before = ""
    for number, turn in enumerate(turns):
        before += turn["prompt"]
        prompt = tokenizer(before).input_ids
        text = tokenizer(turn["completion"], add_special_tokens=False).input_ids
        yield Recording(name, tuple(prompt), tuple(text), repeat=number, group=group)
        before += f"\n\n{turn['completion']}\n\n"


def _tape(path: Path, rows: Sequence[dict]) -> RecordedRuns:
    head, *lines = rows
    try:
        sampling, eos = Sampling(**head["sampling"]), frozenset(head["eos"])
        runs = [
            Recording(
                line["example"],
                tuple(line["prompt"]),
                tuple(line["new_tokens"]),
                line["finish"],
                line["repeat"],
                unlisted(line.get("predictions", ())),
                line.get("group", ""),
            )
            for line in lines
        ]
        limits = {name: head[name] for name in ("max_new", "max_len", "vocab_size")}
        return RecordedRuns(runs, sampling, eos=eos, dtype=head.get("dtype"), **limits)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no recording of this version: record it anew") from error


def from_folder(
    folder: ResultsFolder,
    prompt_of: Callable[[str, int], Sequence[int]],
    *,
    decoder: str | None = None,
) -> RecordedRuns:
    """Make a tape of one decoder's samples in a results folder (default: greedy, else the first).

    `prompt_of` gives the token ids of an example in a repeat. Where a run did not note its
    end-of-sequence ids, they are those that its samples ended with. Raises `ValueError` where the
    prompts are not those of the run, or the run has no such decoder.
    """
    run = folder.load_run()
    names = run["decoders"]
    name = decoder or ("greedy" if "greedy" in names else names[0])
    if name not in names:
        raise ValueError(f"recorded_decoder={name} is not in this run: choose from {names}")
    known = folder.load_predictions()
    runs = [
        _recording(sample, prompt_of(sample.example, sample.repeat), known.get(sample.key, {}))
        for sample in folder.load_samples()
        if sample.decoder == name and not sample.error
    ]
    model = run["model"]
    seen_eos = {r.new_tokens[-1] for r in runs if r.finish == "eos"}
    return RecordedRuns(
        runs,
        Sampling(**run["sampling"]),
        run["max_new"],
        model.get("max_len", ANY),
        model.get("vocab_size", ANY),
        frozenset(model.get("eos", seen_eos)),
        model.get("dtype"),
    )


def _recording(
    sample: Sample, prompt: Sequence[int], predictions: Mapping[PrefixKey, int]
) -> Recording:
    if len(prompt) != sample.prompt_tokens:
        raise ValueError(
            f"{sample.example} has {len(prompt)} prompt tokens here and {sample.prompt_tokens} "
            "in the recording: give the task and model that were recorded"
        )
    return Recording(
        sample.example,
        tuple(prompt),
        sample.new_tokens,
        sample.finish,
        sample.repeat,
        predictions,
        sample.group,
    )
