"""The audit of a run: every completion held against plain decoding's of the same prompt.

Invariant: nothing is taken for equal by leaving it out. In a finished run a missing or failed
completion is a BUG, as is one whose end follows no rule. A prompt that all decoders refuse in the
same words, plain decoding among them, is "not measured".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import psutil
import torch

from ouroboros.audit.audit import WHOLE, Auditor, Case, Control, Finding, well_ended
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.run.folder import AUDIT, ResultsFolder
from ouroboros.bench.run.loop import Bench, StopStrings, eos_ids
from ouroboros.bench.run.prompts import Answers, prompt_ids
from ouroboros.bench.tasks.task import Example
from ouroboros.bench.verdict.audit_report import Row
from ouroboros.decode import DrafterCapabilities
from ouroboros.engine.model import CachedModel

QUICK, THOROUGH = (4, WHOLE), (1, 8, WHOLE)
BYTES_PER_WEIGHT = 16  # copies in float64 and float32, and a third while one is made


def audit_run(
    job: Bench, folder: ResultsFolder, *, controls: bool, on_row: Callable[[], object]
) -> None:
    """Write audit.jsonl, a `Row` for each prompt and repeat that has plain decoding's completion.

    With `controls` plain decoding itself is held against transformers' own forward on every
    prompt, in float64 and with calls of 1, 8 and all tokens. Without, only where a completion
    differs, and in half precision against float32 (far more exact than such a run, and far quicker
    than float64); plain decoding is then called "reference" unless a bug shows.
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
    samples = folder.load_samples()
    answers = Answers(job.task, job.examples, next(iter(job.decoders)), samples)
    judge = _Audit(job, auditor, controls, _exact_in_law(job), answers)
    rows = []
    for example, repeat, group in _groups(job, samples):
        if group or finished:
            rows.append(judge.row(example, repeat, group, all_there=finished))
        on_row()
    folder.write_text(AUDIT, "".join(json.dumps(asdict(row)) + "\n" for row in rows))


@dataclass(frozen=True)
class _Audit:
    job: Bench
    auditor: Auditor
    controls: bool
    in_law: Collection[str]
    answers: Answers

    def row(
        self, example: Example, repeat: int, group: Mapping[str, Sample], *, all_there: bool
    ) -> Row:
        """Judge one prompt's completions; without plain decoding's none can be."""
        early, comparable = self._early(group, all_there), {}
        plain = group.get(PLAIN)
        if plain is None or plain.error:
            reason = Finding("not judged", f"{PLAIN} has no completion of this prompt")
            return _row(example, repeat, {**dict.fromkeys(group, reason), **early}, [])
        prompt = prompt_ids(self.job.target.tokenizer, self.answers.asked(example, repeat))
        for name, sample in group.items():
            early |= self._end(name, sample, len(prompt)) if name not in early else {}
            if name not in early and name != PLAIN:
                comparable[name] = sample.new_tokens
        choose = self.job.sampling.choose(example.id, repeat, vocab=self.job.target.vocab_size)
        found, controls = self._judged(Case(prompt, plain.new_tokens, comparable, choose))
        ours = found.pop("reference", Finding("reference"))
        if not self.controls and ours.verdict != "BUG":
            ours = Finding("reference")
        return _row(example, repeat, {PLAIN: ours, **found, **early}, controls)

    def _judged(self, case: Case) -> tuple[dict[str, Finding], list[Control]]:
        lacking = 0 if self.auditor.ready else _lacking_bytes(self.auditor.target)
        if not lacking:
            return self.auditor.judge(case, controls=self.controls)
        reason = f"copies in float64 and float32 need {lacking / 2**30:.0f} GiB more than there is"
        short = Finding("not judged", reason)
        found = {
            name: Finding("identical") if tuple(new or ()) == tuple(case.reference) else short
            for name, new in case.others.items()
        }
        return {**found, "reference": short}, []

    def _early(self, group: Mapping[str, Sample], all_there: bool) -> dict[str, Finding]:
        """Return the findings that need neither model nor plain decoding: nothing to compare, or a
        decoder that promises no equal tokens."""
        refusal, found = self._refusal(group), {}
        for name in self.job.decoders:
            sample = group.get(name)
            if sample is not None and refusal is not None:
                found[name] = Finding("not measured", refusal)
            elif sample is not None and sample.error:
                found[name] = Finding("BUG", f"failed: {sample.error}")
            elif sample is None and all_there:
                found[name] = Finding("BUG", "missing: there is no such completion")
            elif sample is not None and name in self.in_law:
                found[name] = Finding("in law", "rejection sampling: equal in law, not in tokens")
        return found

    def _refusal(self, group: Mapping[str, Sample]) -> str | None:
        """Return why plain decoding and every other decoder refused the prompt, such as for its
        length: the caller's error (`ValueError`), the same words from all. None for any else."""
        errors = {sample.error for sample in group.values()}
        reason = next(iter(errors), None)
        alike = PLAIN in group and len(errors) == 1
        return reason if alike and reason and reason.startswith("ValueError: ") else None

    def _end(self, name: str, sample: Sample, prompt_len: int) -> dict[str, Finding]:
        """Return {name: BUG} for a completion whose end follows no rule, else {}."""
        job, stopped = self.job, sample.finish == "stop"
        stop = StopStrings(job.target.tokenizer, job.task.stop)(sample.new_tokens)
        right = well_ended(
            sample.new_tokens,
            eos=eos_ids(job.target),
            max_new=job.max_new,
            room=job.target.max_len - prompt_len + 1,
            stopped=stopped,
        )
        if right and stop == (len(sample.new_tokens) if stopped else None):
            return {}
        reason = "its end follows no rule: no end token, no limit, no stop string"
        return {name: Finding("BUG", reason)}


def _row(
    example: Example, repeat: int, found: Mapping[str, Finding], controls: Sequence[Control]
) -> Row:
    brief = {name: _brief(finding) for name, finding in found.items()}
    return Row(example.id, repeat, brief, [asdict(control) for control in controls])


def _exact_in_law(job: Bench) -> set[str]:
    """Return the decoders that choose by a rule of their own, exact in law only."""
    choose = job.sampling.choose("", 0, vocab=job.target.vocab_size)
    rules = {name: DrafterCapabilities.of(make()).rule for name, make in job.decoders.items()}
    return {name for name, rule in rules.items() if rule(choose) is not choose}


def _groups(
    job: Bench, samples: Sequence[Sample]
) -> Iterator[tuple[Example, int, dict[str, Sample]]]:
    """Yield (example, repeat, sample by decoder) in the order of the run."""
    by_key = {sample.key: sample for sample in samples}
    for repeat in range(job.repeats):
        for example in job.examples:
            keys = {name: (example.id, name, repeat) for name in job.decoders}
            yield example, repeat, {n: by_key[k] for n, k in keys.items() if k in by_key}


def _brief(finding: Finding) -> dict:
    """Return a finding as JSON values without what it does not know."""
    return {key: value for key, value in asdict(finding).items() if value not in (None, "", {})}


def _lacking_bytes(target: CachedModel) -> int:
    """Return by how much the audit's copies exceed the free memory of the model's device."""
    wanted = BYTES_PER_WEIGHT * sum(weight.numel() for weight in target.model.parameters())
    if target.device.type == "cuda":
        free = torch.cuda.mem_get_info(target.device)[0]
    else:
        free = psutil.virtual_memory().available
    return max(0, wanted - free)
