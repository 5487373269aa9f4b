"""The checks of a new device detect the faults that they look for."""

import json
from dataclasses import replace

import checks
import pytest
import torch
from checks import equal, floor_share, lossless, main
from shapes import fitting, footprint_of

from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.run import run
from ouroboros.cli.common import composed
from ouroboros.costs import Costs, Footprint, Surface
from ouroboros.models.standin import shape


def test_the_published_pairs_weigh_what_they_weigh():
    """Yi-34B in bf16 is 68.8 GB; its cache holds 60 layers of 8 heads of 128, twice."""
    yi = footprint_of(shape("yi-34b"), torch.bfloat16)
    assert yi.weight_bytes / 1e9 == pytest.approx(68.8, abs=0.05)
    assert yi.kv_bytes_per_token == 2 * 60 * 8 * 128 * 2
    assert yi.weight_bytes - yi.read_bytes == 64000 * 7168 * 2
    costs = Costs.load("h200-34b-6b").footprints
    assert costs == {"target": yi, "draft": footprint_of(shape("yi-6b"), torch.bfloat16)}


@pytest.mark.parametrize(("memory_gib", "layers"), [(140, ""), (80, "@"), (40, None)])
def test_shapes_have_fewer_layers_where_memory_is_short(memory_gib, layers):
    found = fitting(["yi-34b", "yi-6b"], context=2048, memory_bytes=memory_gib << 30)
    assert (found is None) == (layers is None)
    if found:
        assert all(("@" in name) == bool(layers) for name in found)


def test_shapes_that_name_their_layers_lose_the_same_share():
    found = fitting(["yi-34b", "yi-34b@8"], context=2048, memory_bytes=70 << 30)
    assert found == ["yi-34b@48", "yi-34b@6"]


@pytest.mark.parametrize(("target_ms", "passed"), [(10, True), (11, False)])
def test_slow_calls_on_a_gpu_fail_and_their_share_is_printed(
    target_ms, passed, tmp_path, monkeypatch, capsys
):
    feet = {"target": Footprint(950, 950, 0), "draft": Footprint(90, 90, 0)}
    calls = Surface.constant(target_ms), Surface.constant(1.0)
    costs = Costs(*calls, footprints=feet, copy_bytes_per_s=100_000.0)
    monkeypatch.setattr(checks.Costs, "measure_grid", lambda *args, **options: costs)
    models = dict.fromkeys(("target", "draft"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(checks, "preflight", lambda *given: [("it", floor_share, models)])
    assert main(["preflight", str(tmp_path), "--small"]) == (not passed)
    assert f"'target': {9.5 / target_ms}" in capsys.readouterr().err


def test_without_a_gpu_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU"):
        main(["preflight", str(tmp_path)])


@pytest.mark.slow
def test_the_preflight_is_rehearsed(tmp_path):
    words = ["preflight", str(tmp_path), "--small", "--shapes", "smollm2-360m", "smollm2-360m@6"]
    assert main(words) == 0
    found = json.loads((tmp_path / "checks.json").read_text())
    assert [check["name"] for check in found] == ["served", "floor"]
    assert all(check["passed"] for check in found)


@pytest.mark.parametrize(
    ("dtype", "row", "passed"),
    [
        ("float32", {"failed": 0, "unequal": 0, "verdicts": {"identical": 3}}, True),
        ("float32", {"failed": 0, "unequal": 1, "verdicts": {"numeric tie": 1}}, False),
        ("bfloat16", {"failed": 0, "unequal": 1, "verdicts": {"numeric tie": 1}}, True),
        ("bfloat16", {"failed": 0, "unequal": 1, "verdicts": {"BUG": 1}}, False),
        ("bfloat16", {"failed": 1, "unequal": 0, "verdicts": {"identical": 3}}, False),
        ("bfloat16", {"failed": 0, "unequal": 0, "verdicts": None}, False),
    ],
)
def test_a_run_is_lossless_without_bugs_failures_and_float32_differences(
    tmp_path, capsys, dtype, row, passed
):
    (tmp_path / "run.json").write_text(json.dumps({"model": {"dtype": dtype}}))
    (tmp_path / "summary.json").write_text(json.dumps({"decoders": {"ouroboros": row}}))
    assert lossless(tmp_path).passed is passed
    assert main(["lossless", str(tmp_path)]) == (not passed)
    assert json.loads(capsys.readouterr().out)[0]["passed"] is passed


@pytest.mark.slow
def test_texts_of_a_stand_in_are_greedys_up_to_ties_of_the_reference_pair(tmp_path, monkeypatch):
    overrides = ["experiment=gpu_headline", "rehearsal=cpu", "task.limit=1", "max_new=6"]
    overrides += ["model.standin=null", "model.dtype=float32", f"results_dir={tmp_path}"]
    config = composed(overrides)
    some = {name: config.decoder[name] for name in ("greedy", "ouroboros", "speculative")}
    folder = run(replace(config, decoder=some)).folder
    check = equal(folder.path)
    assert check.passed and check.figures == {
        "compared": 2,
        "ties": 0,
        "largest_difference": 0.0,
        "wrong": 0,
    }
    samples = folder.load_samples()
    for tokens, passed in ((lambda new: (*new[:3], new[3] + 1, *new[4:]), False), (tuple, True)):
        other = [replace(s, new_tokens=tokens(s.new_tokens)) for s in samples[1:]]
        monkeypatch.setattr(ResultsFolder, "load_samples", lambda _, o=other: [samples[0], *o])
        assert equal(folder.path).passed is passed
