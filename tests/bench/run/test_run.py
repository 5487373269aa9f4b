"""`run()` from Python: from a typed config to a folder, resumed, and loaded again."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from bench_models import byte_tokenizer, run_config

from ouroboros.bench.replay.recording import read_recording
from ouroboros.bench.report.gather import load
from ouroboros.bench.run.audit import load_audit
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import SAMPLES
from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.run.run import rebuild, run
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.audit import audit
from ouroboros.engine import prepack


@pytest.fixture
def config(saved) -> RunConfig:
    target, draft = str(saved / "target"), str(saved / "draft")
    speculative = {"_target_": "ouroboros.baselines.Speculative", "draft": draft, "gamma": 3}
    decoders = {"greedy": {"_target_": "ouroboros.baselines.Greedy"}, "speculative": speculative}
    pair = PairSpec("tiny", target, draft, dtype="float32")
    return run_config(saved, model=pair, decoder=decoders, max_new=6)


def test_a_run_from_a_typed_config_resumes_and_is_loaded_again(config, tmp_path):
    lines: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    result = run(config, say=lines.append)
    assert torch.get_num_threads() == 2, "not the run's"
    torch.set_num_threads(threads)
    folder, whole = result.folder, result.folder.load_samples()
    assert result.finished and len(whole) == 4 and lines[-1].startswith("results: ")
    assert folder.load_run()["status"] == "finished"
    found = [one["verdict"] for row in load_audit(folder) for one in row.findings.values()]
    assert {*found} == {"reference", "identical"}
    folder.save_run(folder.load_run(), status="interrupted")
    samples = (folder.path / SAMPLES).read_text().splitlines(keepends=True)
    (folder.path / SAMPLES).write_text(samples[0] + samples[1][:40])
    assert run(config).finished
    again = {s.key: s.new_tokens for s in folder.load_samples()}
    assert again == {s.key: s.new_tokens for s in whole}
    paths = {"model.target": config.model.target, "model.draft": config.model.draft}
    bench = rebuild(folder, paths)
    assert list(bench.decoders) == ["greedy", "speculative"] and bench.total == 4
    with pytest.raises(ValueError, match=r"max_new \(6, now 9\)"):
        rebuild(folder, {**paths, "max_new": 9})


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_run_says_how_to_resume(config, monkeypatch, overwrite):
    """The same command would overwrite its finished samples."""
    monkeypatch.setattr("ouroboros.bench.run.run.Bench.run", Mock(side_effect=KeyboardInterrupt))
    lines: list[str] = []
    run(replace(config, overwrite=overwrite), say=lines.append)
    assert lines[-1].endswith(" to resume" + ", without overwrite" * overwrite)


def test_a_scorer_that_fails_ends_no_run_and_the_audit_scores_later(config, monkeypatch):
    monkeypatch.setattr(Prompts, "corpus_scores", lambda self, pairs: 1 / 0, raising=False)
    lines: list[str] = []
    result = run(config, say=lines.append)
    assert result.finished and result.folder.load_run()["status"] == "finished"
    (line,) = [line for line in lines if "have no score: ZeroDivisionError" in line]
    assert f"'ouroboros audit {result.folder.path}' scores them" in line
    monkeypatch.setattr(Prompts, "corpus_scores", lambda self, pairs: {"bleu": len(pairs)})
    monkeypatch.setattr(Prompts, "score", lambda *asked: {"exact_match": 1})
    paths = [f"model.{role}={getattr(config.model, role)}" for role in ("target", "draft")]
    audit([str(result.folder.path)], paths)
    written = json.loads((result.folder.path / "summary.json").read_text())["decoders"]["greedy"]
    assert written["score.bleu"]["value"] == 2.0 and written["score.exact_match"]["value"] == 1.0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("too large")])
def test_ctrl_c_in_the_audit_is_no_finished_run(config, monkeypatch, error):
    monkeypatch.setattr("ouroboros.bench.run.run.audit_run", Mock(side_effect=error))
    lines: list[str] = []
    result = run(config, say=lines.append)
    assert result.folder.load_run()["status"] == "finished" and "'ouroboros audit'" in lines[-1]
    assert result.finished == isinstance(error, ValueError), "a sweep would go on"


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="no packed weights on this processor",
)
@pytest.mark.parametrize("engine", ["fused", "eager"])
def test_a_resumed_run_calls_the_models_as_it_began(config, monkeypatch, engine):
    """Whatever the timing at load says now."""
    times = [9.0] * len(prepack.ROWS), [1.0] * len(prepack.ROWS)
    monkeypatch.setattr(prepack, "TIMED_BYTES", 0)
    monkeypatch.setattr(prepack, "DISPATCH_MS", 0)
    for turn in (1, -1):
        now = times[:: turn if engine == "fused" else -turn]
        monkeypatch.setattr(prepack, "_time_both", lambda units, now=now: now)
        result = run(config)
        assert result.finished
        folder, record = result.folder, result.folder.load_run()
        assert {made["engine"] for made in record["model"]["engines"].values()} == {engine}
        folder.save_run(record, status="interrupted")
        (folder.path / SAMPLES).write_text("")


CLOCK = "{{ strftime_now('%f') }}{% if not thinking %}<quiet>{% endif %}{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("chat_template", "asked", "used", "title"),
    [
        (None, "auto", "plain", "4 tokens · "),
        (CLOCK, "plain", "plain", "4 tokens · "),
        (CLOCK, "auto", "chat", "4 tokens, chat template, thinking=false, date=1 · "),
    ],
)
def test_an_instruct_model_is_asked_in_its_chat_template(saved, chat_template, asked, used, title):
    tokenizer, lines = byte_tokenizer(), list[str]()
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(saved / "target")
    own = {"template_args": {"thinking": False, "date": 1}} if used == "chat" else {}
    task = TaskSpec("prompts", {"path": "examples", "template": asked, **own}, limit=1)
    folder = run(run_config(saved, task=task), say=lines.append).folder
    record = folder.load_run()
    assert record["config"]["task"]["template"] == record["task"]["template"] == used
    assert title in load(folder.path).facts.title
    (replayed,) = read_recording(folder.path, tokenizer)["greedy"].runs
    prompt = Prompts(path="examples").load()[0].prompt
    text = tokenizer.decode(replayed.prompt)
    assert text == (text[:6] + "<quiet>" if own else "") + prompt
    assert list(folder.load_prompts().values()) == ([text] if own else [])
