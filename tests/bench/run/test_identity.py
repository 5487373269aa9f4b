"""A run resumes only if its models, rows, pools and code are unchanged."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from ouroboros.bench.run import identity
from ouroboros.bench.run.folder import ResultsFolder


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("task.version", {"task": {"stop": [], "version": "2"}}),
        ("model.commits", {"model": {"commits": ["b"]}}),
        ("numba", {"provenance": {"versions": {"numba": "2"}}}),
        ("processes", {"provenance": {"machine": {"processes": 1}}}),
        ("order of decoders", {"config": {"decoder": {"b": {}, "a": {}}}}),
    ],
)
def test_a_resumed_run_must_load_the_same_task_and_models(tmp_path, name, facts):
    whole = {"task": {"stop": [], "version": "1"}, "model": {"commits": ["a"]}, "max_new": 8}
    whole["config"] = {"decoder": {"a": {}, "b": {}}}
    whole["provenance"] = {"versions": {"numba": "1"}, "machine": {"processes": 2}}
    folder = ResultsFolder(tmp_path)
    folder.open_run(whole)
    with pytest.raises(ValueError, match=f".{name} was .*overwrite=true") as refusal:
        folder.open_run({**whole, **facts})
    assert "\n" not in str(refusal.value)
    assert folder.open_run(whole) == {**whole, "status": "running"}


def test_provenance_names_versions_and_machine_but_no_host():
    found = identity.provenance()
    assert found["versions"]["torch"] and found["machine"]["cores"] >= 1
    assert json.loads(json.dumps(found)) == found
    assert platform.node() not in json.dumps(found)
    assert identity.git_state(Path("/")) is None


def test_records_and_messages_have_no_paths(tmp_path):
    told = {"m": [str(tmp_path), "01-ai/Yi-34B", "cannot read /etc/x/y: no, see https://a.b/c/d"]}
    shown = {"m": [tmp_path.name, "01-ai/Yi-34B", "cannot read y: no, see https://a.b/c/d"]}
    assert identity.without_paths(told) == shown
