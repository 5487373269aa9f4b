"""The audit of a run: compare every completion with standard decoding's of the same prompt.

Invariant: nothing passes by being left out. In a finished run a missing or failed completion is a
BUG, as is one whose end follows no rule. A prompt that every decoder refuses in the same words,
standard decoding among them, is "not measured".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from itertools import product

import psutil
import torch

from ouroboros.audit.audit import WHOLE, Auditor, Control, Finding, well_ended
from ouroboros.audit.report import Row
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.run.folder import AUDIT, ResultsFolder, read_lines
from ouroboros.bench.run.loop import Bench, StopStrings, eos_ids
from ouroboros.bench.run.prompts import Answers, prompt_ids
from ouroboros.bench.tasks.task import Example
from ouroboros.decode import DrafterCapabilities
from ouroboros.engine.model import CachedModel

QUICK, THOROUGH = (4, WHOLE), (1, 8, WHOLE)
BYTES_PER_WEIGHT = 16  # copies in float64 and float32, and a third while one is made


def load_audit(folder: ResultsFolder) -> list[Row]:
    """Return the rows of audit.jsonl; [] without such a file."""
    return [Row(**row) for _, row in read_lines(folder.path / AUDIT)]


def audit_run(
    job: Bench,
    folder: ResultsFolder,
    *,
    controls: bool,
    on_row: Callable[[], object] = lambda: None,
) -> None:
    """Write audit.jsonl: a `Row` for each prompt and repeat; `on_row` is called after each.

    With `controls`, standard decoding itself is compared with transformers' own forward on every
    prompt, in float64 and with calls of 1, 8 and all tokens. Without, only where a completion
    differs, and in half precision with float32 (far more exact than such a run, and far quicker
    than float64); standard decoding is then "reference" unless a bug shows.
    """
    if PLAIN not in job.decoders:
        return
    finished = folder.load_run()["status"] == "finished"
    quick = not controls and job.target.dtype in (torch.bfloat16, torch.float16)
    auditor = Auditor(
        job.target,
        rows=THOROUGH if controls else QUICK,
        exact=torch.float32 if quick else torch.float64,
    )
    samples = {sample.key: sample for sample in folder.load_samples()}
    answers = Answers(job.task, job.examples, next(iter(job.decoders)), samples.values())
    choose = job.sampling.choose("", 0, vocab=job.target.vocab_size)
    rules = {name: DrafterCapabilities.of(make()).rule for name, make in job.decoders.items()}
    keeps_distribution = {name for name, rule in rules.items() if rule(choose) is not choose}

    def findings(example: Example, repeat: int, group: Mapping[str, Sample]) -> tuple[dict, list]:
        """Judge one prompt's completions, by decoder; return findings and controls."""
        found = _without_comparison(job, group, keeps_distribution, finished)
        plain = group.get(PLAIN)
        if plain is None or plain.error:
            unjudged = Finding("not judged", f"{PLAIN} has no completion of this prompt")
            return {**dict.fromkeys(group, unjudged), **found}, []
        prompt = prompt_ids(job.target.tokenizer, answers.with_history(example, repeat))
        for name in group.keys() - found.keys():
            if not _ends_by_a_rule(job, group[name], len(prompt)):
                reason = "its end follows no rule: no end token, no limit, no stop string"
                found[name] = Finding("BUG", reason)
        others = {n: s.new_tokens for n, s in group.items() if n not in found and n != PLAIN}
        lacking = 0 if auditor.ready else _lacking_bytes(job.target)
        if lacking:
            reason = (
                f"copies in float64 and float32 need {lacking / 2**30:.0f} GiB more than is free"
            )
            short = Finding("not judged", reason)
            measured: list[Control] = []
            same = {n for n, new in others.items() if tuple(new) == tuple(plain.new_tokens)}
            judged = {n: Finding("identical") if n in same else short for n in others}
            judged["reference"] = short
        else:
            choose = job.sampling.choose(example.id, repeat, vocab=job.target.vocab_size)
            judged, measured = auditor.judge(
                prompt, plain.new_tokens, others, choose=choose, controls=controls
            )
        reference = judged.pop("reference", Finding("reference"))
        if not controls and reference.verdict != "BUG":
            reference = Finding("reference")
        return {PLAIN: reference, **judged, **found}, measured

    rows = []
    for repeat, example in product(range(job.repeats), job.examples):
        keys = {name: (example.id, name, repeat) for name in job.decoders}
        group = {name: samples[key] for name, key in keys.items() if key in samples}
        if group or finished:
            found, measured = findings(example, repeat, group)
            known = {
                name: {k: v for k, v in asdict(finding).items() if v not in (None, "", {})}
                for name, finding in found.items()
            }
            rows.append(Row(example.id, repeat, known, [asdict(control) for control in measured]))
        on_row()
    folder.write_text(AUDIT, "".join(json.dumps(asdict(row)) + "\n" for row in rows))


def _without_comparison(
    job: Bench, group: Mapping[str, Sample], keeps_distribution: Collection[str], finished: bool
) -> dict[str, Finding]:
    """Return the findings that need neither model nor standard decoding: a missing or failed
    completion, a refused prompt, or a decoder that preserves the distribution only."""
    errors = {sample.error for sample in group.values()}
    reason = next(iter(errors), None)
    # The caller's error (`ValueError`), in the same words from all, such as too long a prompt.
    refused = PLAIN in group and len(errors) == 1 and (reason or "").startswith("ValueError: ")
    found = {}
    for name in job.decoders:
        sample = group.get(name)
        if sample is None:
            if finished:
                found[name] = Finding("BUG", "missing: there is no such completion")
        elif sample.error:
            failed = Finding("BUG", f"failed: {sample.error}")
            found[name] = Finding("not measured", sample.error) if refused else failed
        elif name in keeps_distribution:
            found[name] = Finding("in law", "rejection sampling: equal in law, not in tokens")
    return found


def _ends_by_a_rule(job: Bench, sample: Sample, prompt_len: int) -> bool:
    """Return whether a completion ends at an end token, a limit or a stop string."""
    stopped = sample.finish == "stop"
    ended = well_ended(
        sample.new_tokens,
        eos=eos_ids(job.target),
        max_new=job.max_new,
        room=job.target.max_len - prompt_len + 1,
        stopped=stopped,
    )
    stop = StopStrings(job.target.tokenizer, job.task.stop)(sample.new_tokens)
    return ended and stop == (len(sample.new_tokens) if stopped else None)


def _lacking_bytes(target: CachedModel) -> int:
    """Return by how much the audit's copies exceed the free memory of the model's device."""
    needed = BYTES_PER_WEIGHT * sum(weight.numel() for weight in target.model.parameters())
    if target.device.type == "cuda":
        free = torch.cuda.mem_get_info(target.device)[0]
    else:
        free = psutil.virtual_memory().available
    return max(0, needed - free)
