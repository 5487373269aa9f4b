"""Audit a run: compare every completion with standard decoding's completion of the same prompt.

Invariant: a missing completion never passes. In a finished run, the verdict is BUG for missing and
failed completions, and for those that do not end at an end token, a limit or a stop string. It is
"not measured" if all decoders reject the prompt with the same error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product

import psutil
import torch
from tqdm import tqdm

from ouroboros.audit.audit import WHOLE, Auditor, Control, Finding, well_ended
from ouroboros.audit.report import Row
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.run.folder import AUDIT, ResultsFolder, read_lines
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.prompts import Answers
from ouroboros.core.detokenizer import StopStrings
from ouroboros.decode import Drafter, DrafterCapabilities

QUICK, THOROUGH = (4, WHOLE), (1, 8, WHOLE)
BYTES_PER_WEIGHT = 16  # copies in float64 and float32, and a temporary one


def load_audit(folder: ResultsFolder) -> list[Row]:
    """Return the rows of audit.jsonl; [] without such a file."""
    return list(read_lines(folder.path / AUDIT, lambda row: Row(**row)))


def audit_run(job: Bench, folder: ResultsFolder, *, controls: bool, progress: bool = False) -> None:
    """Write audit.jsonl: a `Row` for each prompt and repeat. Does nothing without greedy.

    With `controls`, standard decoding is also compared with transformers' own forward on every
    prompt, in float64 and with calls of 1, 8 and all tokens. Without, this is done only for prompts
    with a differing completion, with calls of 4 and all tokens (in half precision against float32),
    and standard decoding's verdict is "reference" unless a bug is found.
    """
    if PLAIN not in job.decoders:
        return
    finished, vocab = folder.load_run()["status"] == "finished", job.target.vocab_size
    quick = not controls and job.target.dtype in (torch.bfloat16, torch.float16)
    exact, sizes = torch.float32 if quick else torch.float64, THOROUGH if controls else QUICK
    auditor, lacking = Auditor(job.target, rows=sizes, exact=exact), _lacking_bytes(job)
    samples = {sample.key: sample for sample in folder.load_samples()}
    job.prompts.texts |= folder.load_prompts()
    answers = Answers(job.task, job.examples, next(iter(job.decoders)), samples)
    made = {name: make() for name, make in job.decoders.items()}
    choose = job.sampling.choose("", 0, vocab=vocab)
    rules = {name: DrafterCapabilities.of(decoder).rule for name, decoder in made.items()}
    in_law = {name for name, rule in rules.items() if rule(choose) is not choose}
    # With exact calls, this engine's decoders have no ties; other engines may.
    tieless = {n for n, one in made.items() if job.target.exact and isinstance(one, Drafter)}
    rows, texts = [], list(product(range(job.repeats), job.examples))
    for repeat, example in tqdm(texts, desc="audit", leave=False, disable=not progress):
        keys = {name: (example.id, name, repeat) for name in job.decoders}
        group = {name: samples.get(key) for name, key in keys.items() if finished or key in samples}
        findings, plain = _without_comparison(group, in_law), group.get(PLAIN)
        controlled: list[Control] = []
        if plain is not None and not plain.error:
            prompt = job.prompts.ids(answers.with_history(example, repeat))
            for name, sample in group.items():
                if sample and name not in findings and not _ends_by_a_rule(job, sample, prompt):
                    reason = "it ends without an end token, a limit or a stop string"
                    findings[name] = Finding("BUG", reason)
            new = {n: s.new_tokens for n, s in group.items() if s and n not in {PLAIN, *findings}}
            if lacking:
                gib = f"{lacking / 2**30:.0f} GiB more than is free"
                short = Finding("not judged", f"copies in float64 and float32 need {gib}")
                judged: dict = dict.fromkeys((None, *new), short)
                same = [name for name, ids in new.items() if ids == plain.new_tokens]
                judged |= dict.fromkeys(same, Finding("identical"))
            else:
                choose = job.sampling.choose(example.id, repeat, vocab=vocab)
                judged, controlled = auditor.judge(
                    prompt, plain.new_tokens, new, choose=choose, controls=controls
                )
            reference = judged.pop(None, Finding("reference"))
            if not controls and reference.verdict != "BUG":
                reference = Finding("reference")
            for name in tieless & judged.keys():
                if judged[name].verdict == "numeric tie":
                    reason = f"exact calls have no ties; {judged[name].reason}"
                    judged[name] = replace(judged[name], verdict="BUG", reason=reason)
            findings = {PLAIN: reference, **judged, **findings}
        if findings:
            known = {name: one.to_dict() for name, one in findings.items()}
            rows.append(Row(example.id, repeat, known, list(map(asdict, controlled))))
    folder.write_text(AUDIT, "".join(json.dumps(asdict(row)) + "\n" for row in rows))


def _without_comparison(
    group: Mapping[str, Sample | None], in_law: Collection[str]
) -> dict[str, Finding]:
    """Return, by decoder, one prompt's verdicts that need no comparison with standard decoding.
    `group` maps decoders to samples; decoders `in_law` use rejection sampling."""
    plain, errors = group.get(PLAIN), {sample and sample.error for sample in group.values()}
    # All fail with the same `ValueError`, such as a prompt that is too long.
    refused = plain and len(errors) == 1 and (plain.error or "").startswith("ValueError: ")
    found = {}
    for name, sample in group.items():
        if sample is None:
            found[name] = Finding("BUG", "the completion is missing")
        elif sample.error:
            failed = Finding("BUG", f"failed: {sample.error}")
            found[name] = Finding("not measured", sample.error) if refused else failed
        elif name in in_law:
            found[name] = Finding(
                "in law", "rejection sampling preserves the distribution, not individual tokens"
            )
        elif plain is None or plain.error:
            found[name] = Finding("not judged", f"{PLAIN} has no completion of this prompt")
    return found


def _ends_by_a_rule(job: Bench, sample: Sample, prompt: Sequence[int]) -> bool:
    """Return whether a completion ends at an end token, a limit or a stop string."""
    new, stopped = sample.new_tokens, sample.finish == "stop"
    room = job.target.max_len - len(prompt) + 1
    ended = well_ended(new, eos=job.eos, max_new=job.max_new, room=room, stopped=stopped)
    stop = StopStrings(job.target.tokenizer, job.task.stop, after=prompt)(new)
    return ended and stop == (len(new) if stopped else None)


def _lacking_bytes(job: Bench) -> int:
    """Return how many bytes of device memory are missing for the audit's copies of the weights."""
    weights, device = job.target.model.parameters(), job.target.device
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else psutil.virtual_memory().available
    return max(0, BYTES_PER_WEIGHT * sum(weight.numel() for weight in weights) - free)
