"""A run resumes only if its models, rows, pools and code are unchanged."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from ouroboros.bench.run import identity
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.tasks.registry import TaskSpec


@pytest.fixture
def config(tmp_path) -> RunConfig:
    for role in ("target", "draft"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "config.json").write_text("{}")
        (tmp_path / role / "model.safetensors").write_bytes(bytes(1000))
    for name in ("rows.jsonl", "pool.json"):
        (tmp_path / name).write_text("{}")
    rows, pool = str(tmp_path / "rows.jsonl"), str(tmp_path / "pool.json")
    ouroboros = {"_target_": "ouroboros.Ouroboros", "pool": pool, "pool_state": "loaded"}
    return RunConfig(
        model=PairSpec("tiny", str(tmp_path / "target"), str(tmp_path / "draft")),
        task=TaskSpec("prompts", {"path": rows}, limit=1),
        decoder={"greedy": {"_target_": "ouroboros.baselines.Greedy"}, "ouroboros": ouroboros},
    )


@pytest.mark.parametrize(
    "name", ["target/model.safetensors", "draft/tokenizer.json", "rows.jsonl", "pool.json"]
)
def test_other_contents_at_the_same_path_are_another_run(config, tmp_path, name):
    before = identity.describe(config, [])["contents"]
    (tmp_path / "target" / "README.md").write_text("no part of the model")
    assert identity.describe(config, [])["contents"] == before
    (tmp_path / name).write_text("other")
    assert identity.describe(config, [])["contents"] != before


def test_only_what_exists_is_hashed_and_ids_are_not(config):
    ids = {"model.target": "some/model", "model.draft": None}
    cold = {"decoder.ouroboros.pool": None, "decoder.ouroboros.pool_state": "cold"}
    assert list(identity.file_hashes(config.replaced({**ids, **cold}))) == ["task.path"]
    gguf = str(config.files()["task.path"])
    peer = {"_target_": "ouroboros.baselines.llama_cpp.LlamaCpp", "path": gguf}
    assert "decoder.peer.path" in identity.file_hashes(config.replaced({"decoder.peer": peer}))
    shipped = config.replaced({"model.target": "reference/target", "task.path": "examples"})
    found = identity.file_hashes(shipped)
    assert "model.target" in found and "task.path" not in found


def test_a_copy_is_the_same_and_a_large_file_is_sampled_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "WHOLE_BYTES", 0)
    monkeypatch.setattr(identity, "SAMPLE_BYTES", 10)
    files = [tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.safetensors")]
    for file in files:
        file.write_bytes(bytes(1000))
    assert identity.content_hash(files[0]) == identity.content_hash(files[1])
    for at in (0, 995):
        files[2].write_bytes(bytes(at) + b"x" + bytes(999 - at))
        assert identity.content_hash(files[2]) != identity.content_hash(files[0])


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("task.stop", {"task": {"stop": ["\n"], "version": "1"}}),
        ("task.version", {"task": {"stop": [], "version": "2"}}),
        ("model.commits", {"model": {"commits": ["b"]}}),
        ("max_new", {"max_new": 9}),
        ("numba", {"provenance": {"versions": {"numba": "2"}}}),
        ("order of decoders", {"config": {"decoder": {"b": {}, "a": {}}}}),
        ("order of decoders", {"config": {"decoder": -1}}),
    ],
)
def test_a_resumed_run_must_load_the_same_task_and_models(tmp_path, name, facts):
    whole = {"task": {"stop": [], "version": "1"}, "model": {"commits": ["a"]}, "max_new": 8}
    whole["config"] = {"decoder": {"a": {}, "b": {}}}
    whole["provenance"] = {"versions": {"numba": "1"}}
    folder = ResultsFolder(tmp_path)
    folder.open_run(whole)
    with pytest.raises(ValueError, match=f".{name} was .*overwrite=true") as refusal:
        folder.open_run({**whole, **facts})
    assert "\n" not in str(refusal.value) and folder.load_run()["resumed"] == 0
    assert folder.open_run(whole)["resumed"] == 1


def test_the_sources_are_all_files_that_samples_depend_on():
    files = {path.as_posix() for path in identity.code_files()}
    tasks = ("tasks/gsm8k.py", "tasks/examples/gsm8k.jsonl", "tasks/templates.yaml")
    run = ("run/run.py", "run/config.py", "run/tree_recorder.py", "run/loop.py")
    assert {f"ouroboros/bench/{name}" for name in (*tasks, *run)} <= files
    engine = ("decode.py", "engine/model.py", "drafters/ouroboros.py", "costs/epyc.yaml")
    assert {f"ouroboros/{name}" for name in engine} <= files
    assert not any("bench/report" in name or Path(name).is_absolute() for name in files)


def test_provenance_names_versions_and_machine_but_no_host():
    found = identity.provenance()
    assert found["versions"]["torch"] and found["machine"]["cores"] >= 1
    assert json.loads(json.dumps(found)) == found
    assert platform.node() not in json.dumps(found)
    assert identity.git_state(Path("/")) is None


def test_identities_ignore_order_and_messages_drop_paths(tmp_path):
    assert identity.identity({"a": 1, "b": 2}, "x") == identity.identity({"b": 2, "a": 1}, "x")
    assert identity.identity({"a": 1}) != identity.identity({"a": 2})
    (tmp_path / "pair").mkdir()
    shown = {"m": ["pair", "01-ai/Yi-34B"]}
    assert identity.without_paths({"m": [str(tmp_path / "pair"), "01-ai/Yi-34B"]}) == shown
    told = "cannot read /etc/x/y: denied, see https://a.b/c/d"
    assert identity.without_paths(told) == "cannot read y: denied, see https://a.b/c/d"
