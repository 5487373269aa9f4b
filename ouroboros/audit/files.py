"""Audit completions of any engine, read from files.

Each line is a JSON object with `prompt` or `prompt_token_ids`, and the completion as `text` or
`token_ids` (vLLM's names). Lines of several files are paired by `id`, or by order. Prefer token
ids, because tokenizing a text may give other tokens than were generated. An empty completion means
that the end token came first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from ouroboros.audit.audit import Auditor
from ouroboros.audit.report import Row
from ouroboros.core.select import argmax
from ouroboros.engine.model import CachedModel
from ouroboros.models import vocab


def audit_files(
    target: CachedModel,
    files: Sequence[Path],
    *,
    eos: Collection[int] = (),
    on_row: Callable[[], object] = lambda: None,
) -> list[Row]:
    """Audit files of greedy completions, prompt by prompt: the first file is compared with the
    model in float64, every other file with the first. Return a `Row` per prompt; call `on_row`
    after each.

    Decoders are named by the files' stems. Raises `ValueError` for a line that cannot be read, and
    for a prompt that is missing or different in the first file.
    """
    unique = len({path.stem for path in files}) == len(files)
    names = [path.stem if unique else str(path) for path in files]
    read = [_completions(target, path, frozenset(eos)) for path in files]
    for path, completions in zip(files, read, strict=True):
        for key, (prompt, _) in completions.items():
            if key not in read[0] or read[0][key][0] != prompt:
                raise ValueError(f"{path}: {files[0]} has no such prompt {key!r}; pair lines by id")
    auditor, rows = Auditor(target), []
    for key, (prompt, reference) in read[0].items():
        pairs = zip(names[1:], read[1:], strict=True)
        others = {name: texts[key][1] if key in texts else None for name, texts in pairs}
        if not reference and eos:
            logits = auditor.score(prompt, [0])[0]
            reference = [max(eos, key=logits.tolist().__getitem__)]
        if any(token >= target.vocab_size for token in reference):
            raise ValueError(
                f"{files[0]}: completion {key!r} has ids beyond the model's vocabulary"
            )
        for name, new in others.items():  # text has no end token, token ids may have one
            if new is not None and _without_end(new, eos) == _without_end(reference, eos):
                others[name] = reference
        judged, controls = auditor.judge(prompt, reference, others, choose=argmax, controls=True)
        named = {names[0]: judged.pop(None), **judged}
        findings = {str(name): finding.to_dict() for name, finding in named.items()}
        rows.append(Row(key, 0, findings, [asdict(control) for control in controls]))
        on_row()
    return rows


def _completions(
    target: CachedModel, path: Path, eos: Collection[int]
) -> dict[str, tuple[list[int], list[int]]]:
    """Return {id: (prompt tokens, new tokens)}; a line without an id has its number as id.
    Keep one of several trailing end tokens. Raises `ValueError` for a line that cannot be read."""
    completions: dict[str, tuple[list[int], list[int]]] = {}
    for number, line in enumerate(path.read_text("utf-8").split("\n"), start=1):  # keeps U+2028
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, new = row.get("prompt_token_ids"), row.get("token_ids")
            if prompt is None:
                prompt = vocab.encode(target.tokenizer, row["prompt"])
            if new is None:
                text = target.tokenizer.decode(prompt, skip_special_tokens=True)
                whole = vocab.encode(target.tokenizer, row.get("prompt", text) + row["text"])
                alone = target.tokenizer(row["text"], add_special_tokens=False)["input_ids"]
                fits = whole[: len(prompt)] == prompt
                new = whole[len(prompt) :] if fits else list(alone)
            while len(new) > 1 and {new[-2], new[-1]} <= set(eos):
                new = new[:-1]
            if str(key := row.get("id", len(completions) + 1)) in completions:
                raise ValueError(f"a second completion has id {key!r}; give each line its own id")
            if not all(type(token) is int and token >= 0 for token in [*prompt, *new]):
                raise ValueError("a token id is not a whole number, 0 or more")
            if not new and not eos:
                raise ValueError("the completion is empty, but the model has no end token")
            if not prompt or not all(t < target.vocab_size for t in prompt):
                raise ValueError("the prompt is empty, or has ids beyond the model's vocabulary")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            lacks = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{path}, line {number}: {lacks}; give prompt or prompt_token_ids, and text or "
                "token_ids"
            ) from error
        completions[str(key)] = (prompt, new)
    if not completions:
        raise ValueError(f"{path} has no completions: give one JSON object per line")
    return completions


def _without_end(new: Sequence[int], eos: Collection[int]) -> Sequence[int]:
    return new[:-1] if new and new[-1] in eos else new
