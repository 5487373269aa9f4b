"""The audit of a run: every completion held against plain decoding's of the same prompt.

Invariant: nothing is taken for equal by leaving it out. In a finished run a missing or failed
completion is a BUG, as is one whose end follows no rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import psutil
import torch

from ouroboros.audit import WHOLE, Auditor, Case, Control, Finding, well_ended
from ouroboros.bench.audit_report import PLAIN, Row
from ouroboros.bench.conversation import Answers
from ouroboros.bench.prompt import prompt_ids
from ouroboros.bench.run import Bench, eos_ids
from ouroboros.bench.sample import Sample
from ouroboros.bench.store import AUDIT, ResultsFolder
from ouroboros.bench.task import Example
from ouroboros.model import CachedModel

QUICK, THOROUGH = (8, WHOLE), (1, 8, WHOLE)
BYTES_PER_WEIGHT = 12  # one copy in float64, one in float32


def audit_run(
    job: Bench, folder: ResultsFolder, *, controls: bool, on_row: Callable[[], None]
) -> None:
    """Write audit.jsonl, a `Row` for each prompt and repeat that has plain decoding's completion.

    With `controls` plain decoding itself is held against transformers' own forward on every
    prompt, with calls of 1, 8 and all tokens; without, only where a completion differs.
    """
    finished = folder.load_run()["status"] == "finished"
    auditor = Auditor(job.target, rows=THOROUGH if controls else QUICK)
    samples = folder.load_samples()
    answers = Answers(job.task, job.examples, next(iter(job.decoders)), samples)
    judge = _Audit(job, auditor, controls, _exact_in_law(job), answers)
    rows = []
    for example, repeat, group in _groups(job, samples):
        rows.append(judge.row(example, repeat, group, all_there=finished))
        on_row()
    lines = [json.dumps(asdict(row)) + "\n" for row in rows if row is not None]
    folder.write_text(AUDIT, "".join(lines))


@dataclass(frozen=True)
class _Audit:
    job: Bench
    auditor: Auditor
    controls: bool
    in_law: Collection[str]
    answers: Answers

    def row(
        self, example: Example, repeat: int, group: Mapping[str, Sample], *, all_there: bool
    ) -> Row | None:
        """Judge one prompt's completions; None where plain decoding has none."""
        plain = group.get(PLAIN)
        if plain is None or plain.error:
            return None
        prompt = prompt_ids(self.job.target.tokenizer, self.answers.asked(example, repeat))
        choose = self.job.sampling.choose(example.id, repeat, vocab=self.job.target.vocab_size)
        findings, comparable = {}, {}
        for name in self.job.decoders:
            sample = group.get(name)
            early = self._early(name, sample, len(prompt))
            if early is not None and (sample is not None or all_there):
                findings[name] = early
            elif sample is not None and name != PLAIN:
                comparable[name] = sample.new_tokens
        found, controls = self._judged(Case(prompt, plain.new_tokens, comparable, choose))
        ours = found.pop("reference", None) or Finding("identical")
        findings = {PLAIN: ours, **found, **findings}
        return Row(
            example.id,
            repeat,
            {n: _brief(findings[n]) for n in self.job.decoders if n in findings},
            [asdict(control) for control in controls],
        )

    def _judged(self, case: Case) -> tuple[dict[str, Finding], list[Control]]:
        lacking = _lacking_bytes(self.auditor.target)
        if not lacking:
            return self.auditor.judge(case, controls=self.controls)
        reason = f"copies in float64 and float32 need {lacking / 2**30:.0f} GiB more than there is"
        return {
            name: Finding("identical") if same else Finding("not judged", reason)
            for name, new in case.others.items()
            for same in [tuple(new or ()) == tuple(case.reference)]
        }, []

    def _early(self, name: str, sample: Sample | None, prompt_len: int) -> Finding | None:
        """Return the finding that needs no model, if there is one."""
        if sample is None:
            return Finding("BUG", "missing: there is no such completion")
        if sample.error:
            return Finding("BUG", f"failed: {sample.error}")
        right = well_ended(
            sample.new_tokens,
            eos=eos_ids(self.job.target),
            max_new=self.job.max_new,
            room=self.job.target.max_len - prompt_len + 1,
            stopped=sample.finish == "stop",
        )
        if not right:
            return Finding("BUG", "its end follows no rule: no end token, no limit, no stop string")
        if name in self.in_law:
            return Finding("in law", "rejection sampling: the law is the same, the tokens are not")
        return None


def _exact_in_law(job: Bench) -> set[str]:
    """Return the decoders that choose by a rule of their own, exact in law only."""
    choose = job.sampling.choose("", 0, vocab=job.target.vocab_size)
    rules = {name: getattr(make(), "rule", None) for name, make in job.decoders.items()}
    return {name for name, rule in rules.items() if rule and rule(choose) is not choose}


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
