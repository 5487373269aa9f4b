"""The audit of a run: which completions are a BUG, and that none is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from shutil import copytree
from types import SimpleNamespace

import pytest
import torch
from bench_models import TextTask, bench_of, byte_tokenizer, tiny_llama
from bench_models import ran as started
from ouroboros.baselines import Greedy, PromptLookup, Speculative
from ouroboros.baselines.hf import HFGenerate
from tiny import mostly_slow

from ouroboros import CachedModel, Ouroboros
from ouroboros.audit.report import Row, audit_markdown, control_table, tally, verdict, verdict_table
from ouroboros.bench.run import audit as auditing
from ouroboros.bench.run.audit import audit_run, load_audit
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import SAMPLES, ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.cli import audit as command

LOOKUP = partial(PromptLookup, max_ngram_size=2, num_tokens=3)
TASK = TextTask("def f(a):\n", "import os\n\ndef g", max_new=24)


def job_of(pair, **changes) -> Bench:
    decoders = {
        "greedy": Greedy,
        "ouroboros": lambda: Ouroboros(pair[1]),
        "classic": lambda: Speculative(pair[1], gamma=3, verification="rejection"),
    }
    return bench_of(pair, TASK, **{"decoders": decoders, **changes})


def run(job: Bench, path) -> ResultsFolder:
    folder = started(job, path, facts={"decoders": list(job.decoders)})
    folder.save_run(folder.load_run(), status="finished")
    return folder


@pytest.fixture(scope="module")
def finished(pair, tmp_path_factory):
    return run(job_of(pair), tmp_path_factory.mktemp("finished")).path


@pytest.fixture
def job(pair) -> Bench:
    return job_of(pair)


@pytest.fixture
def folder(finished, tmp_path) -> ResultsFolder:
    """A copy of the folder of a finished run of `job`."""
    return ResultsFolder(copytree(finished, tmp_path, dirs_exist_ok=True))


def audited(job: Bench, folder: ResultsFolder, *, controls: bool = False):
    audit_run(job, folder, controls=controls)
    return load_audit(folder)


def verdicts(rows, name):
    return [row.findings[name]["verdict"] for row in rows if name in row.findings]


def tamper(folder: ResultsFolder, decoder: str, change) -> None:
    """Rewrite the samples of a decoder; `change` returns None to drop one."""
    samples = [change(s) if s.decoder == decoder else s for s in folder.load_samples()]
    lines = [json.dumps(sample.to_dict()) + "\n" for sample in samples if sample is not None]
    folder.write_text(SAMPLES, "".join(lines))


HOT = Sampling(temperature=0.9, top_k=20)
RULES = list(product((Sampling(), HOT), (1.0, 1.3)))


@pytest.mark.parametrize(("sampling", "penalty"), mostly_slow(RULES, quick=RULES[1:3]))
def test_a_right_run_is_identical(pair, tmp_path, sampling, penalty):
    decoders = job_of(pair).decoders
    if penalty != 1.0:
        decoders = {name: make for name, make in decoders.items() if name != "classic"}
    sampling = replace(sampling, repetition_penalty=penalty)
    job = job_of(pair, decoders=decoders, sampling=sampling, repeats=2)
    rows = audited(job, run(job, tmp_path), controls=True)
    assert len(rows) == 4
    for name in ("greedy", "ouroboros"):
        assert verdicts(rows, name) == ["identical"] * 4
    if penalty == 1.0:
        expected = "in law" if sampling.temperature else "identical"
        assert verdicts(rows, "classic") == [expected] * 4
    table = control_table(rows)
    assert list(table["tokens a call"]) == ["1", "8", "all"]
    assert set(table["texts"]) == {4} and not table["texts that differ"].any()


BUGS = {
    "another token": lambda s: replace(s, new_tokens=(*s.new_tokens[:5], 1, *s.new_tokens[6:])),
    "truncated at a stop": lambda s: replace(s, new_tokens=s.new_tokens[:-1], finish="stop"),
    "a stop that is none": lambda s: replace(s, finish="stop"),
    "failed": lambda s: replace(s, new_tokens=(), error="RuntimeError: no"),
    "missing": lambda s: None,
}


@pytest.mark.parametrize(
    "name", mostly_slow(BUGS, quick=["another token", "truncated at a stop", "missing"])
)
def test_what_is_wrong_or_missing_is_a_bug(job, folder, name):
    tamper(folder, "ouroboros", BUGS[name])
    rows = audited(job, folder)
    assert verdicts(rows, "ouroboros") == ["BUG", "BUG"]
    assert verdicts(rows, "greedy") == ["reference"] * 2
    assert verdicts(rows, "classic") == ["identical"] * 2
    assert verdict(tally(rows, "ouroboros")) == "BUG in 2 of 2 (!)"
    text = audit_markdown("title", rows, verdict_table(rows, list(job.decoders)))
    assert "BUG in 2 of 2 (!)" in text and "HumanEval" not in text


@pytest.mark.parametrize(("exact", "ours"), [(False, "numeric tie"), (True, "BUG")])
def test_exact_calls_leave_no_ties_to_decoders_of_this_engine(tmp_path, exact, ours):
    """Two tokens of equal logits are a tie to other engines still, which compute otherwise."""
    decoders, twin = {"greedy": Greedy, "lookup": LOOKUP, "hf": HFGenerate}, 250

    def made() -> tuple[Bench, ResultsFolder]:
        engine = "fused" if exact else "eager"
        target = CachedModel(model, tokenizer=byte_tokenizer(), engine=engine)
        job = bench_of([target], TextTask("abcabc", max_new=6), decoders)
        return job, run(job, tmp_path / f"run{len(list(tmp_path.iterdir()))}")

    model = tiny_llama(0)
    token = made()[1].load_samples()[0].new_tokens[-1]
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[token]
    job, folder = made()
    for name in ("lookup", "hf"):
        tamper(folder, name, lambda s: replace(s, new_tokens=(*s.new_tokens[:-1], twin)))
    rows = audited(job, folder)
    assert (verdicts(rows, "lookup"), verdicts(rows, "hf")) == ([ours], ["numeric tie"])
    told = rows[0].findings["lookup"]["reason"].startswith("exact calls have no ties; the other")
    assert told is exact and verdicts(rows, "greedy") == ["reference"]


def test_a_prompt_that_every_decoder_refuses_alike_is_not_measured(job, folder):
    words = "ValueError: the prompt has 9 tokens, the context is 8"

    def failing(reason):
        return lambda s: replace(s, new_tokens=(), error=reason) if s.example == "p0" else s

    for name in job.decoders:
        tamper(folder, name, failing(words))
    rows = audited(job, folder)
    assert verdicts(rows, "greedy") == ["not measured", "reference"]
    assert verdicts(rows, "ouroboros") == ["not measured", "identical"]
    assert rows[0].findings["greedy"]["reason"] == words
    tamper(folder, "ouroboros", failing("ValueError: of its own"))
    assert verdicts(audited(job, folder), "ouroboros") == ["BUG", "identical"]
    for name in job.decoders:
        tamper(folder, name, failing("RuntimeError: no"))
    assert verdicts(audited(job, folder), "greedy")[0] == "BUG"


def test_only_completions_that_are_there_are_judged(job, folder, tmp_path):
    folder.save_run(folder.load_run(), status="interrupted")
    tamper(folder, "ouroboros", BUGS["missing"])
    rows = audited(job, folder)
    assert verdicts(rows, "ouroboros") == [] and verdicts(rows, "classic") == ["identical"] * 2
    tamper(folder, "greedy", BUGS["failed"])
    rows = audited(job, folder)
    assert verdicts(rows, "greedy") == ["BUG"] * 2
    assert verdicts(rows, "classic") == ["not judged"] * 2
    job.decoders = {"ouroboros": job.decoders["ouroboros"]}
    assert audited(job, run(job, tmp_path / "without greedy")) == []


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, "-"),
        ({"identical": 3}, "identical"),
        ({"in law": 3}, "in law"),
        ({"reference": 3}, "reference"),
        ({"identical": 2, "numeric tie": 1}, "1 tie of 3"),
        ({"identical": 2, "numeric tie": 2, "BUG": 1}, "BUG in 1 of 5 (!)"),
        ({"identical": 2, "not judged": 1}, "1 of 3 not judged (!)"),
    ],
)
def test_the_verdict_in_words(counts, words):
    assert verdict(counts) == words


def test_the_share_that_differs_is_of_the_completions_that_were_compared():
    words = ["identical"] * 3 + ["numeric tie", "not measured", "not judged"]
    rows = [Row(str(n), 0, {"fast": {"verdict": word}}) for n, word in enumerate(words)]
    cells = audit_markdown("title", rows, verdict_table(rows, ["fast"])).split("\n")[4].split("|")
    assert [cell.strip() for cell in cells[4:9]] == ["6", "3", "1", "0", "25.0 %"]


def test_too_large_a_model_is_not_judged_where_it_differs(job, folder, monkeypatch):
    monkeypatch.setattr(auditing, "BYTES_PER_WEIGHT", 10**12)
    rows = audited(job, folder, controls=True)
    assert verdicts(rows, "ouroboros") == ["identical"] * 2
    assert verdicts(rows, "greedy") == ["not judged"] * 2
    tamper(folder, "ouroboros", BUGS["another token"])
    rows = audited(job, folder)
    assert verdicts(rows, "ouroboros") == ["not judged"] * 2
    assert "GiB more than is free" in rows[0].findings["ouroboros"]["reason"]


def test_the_commands_exit_code(job, folder, monkeypatch):
    report = SimpleNamespace(facts=SimpleNamespace(title="a title"))
    monkeypatch.setattr(command, "rebuild", lambda config, overrides: job)
    monkeypatch.setattr(command, "make_report", lambda folder: report)

    def exit_code() -> int:
        code, document = command.audit([str(folder.path)], [])
        assert (document["bugs"] > 0) == (code == 1) and (folder.path / "audit.md").exists()
        return code

    assert exit_code() == 0
    with monkeypatch.context() as patch:
        patch.setattr(auditing, "BYTES_PER_WEIGHT", 10**12)
        assert exit_code() == 2
    tamper(folder, "ouroboros", BUGS["another token"])
    assert exit_code() == 1
