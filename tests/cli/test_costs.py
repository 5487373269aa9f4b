"""Call costs that decoders plan with: measured once, recorded, reused when a run resumes."""

from dataclasses import replace

import pytest
from bench_models import CostAware

from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.run import rebuild
from ouroboros.costs import Costs, Surface

TINY = ["task.limit=2", "max_new=4", "threads=1", "model.dtype=float32", "audit=none"]
PRICED = ["decoder=greedy", "+decoder.priced={_target_: bench_models.CostAware, costs: null}"]
OWN = Costs(Surface.flat({1: 5.0, 96: 50.0}), about={"measured": "in a test"})


@pytest.fixture
def run_priced(run_bench, saved_pair):
    """Run, and return the folder and what the decoder was told."""

    def run(name: str, *overrides: str) -> tuple[ResultsFolder, object]:
        CostAware.told = "nothing"
        code, _, err = run_bench(*TINY, *PRICED, f"results_dir={name}", *overrides)
        assert code == 0, err
        return ResultsFolder(saved_pair / name), CostAware.told

    return run


def test_costs_are_probed_at_load_and_recorded(run_priced):
    folder, told = run_priced("probed")
    assert told == folder.load_costs() and told.about["measured"] == "at load"
    assert told.draft is None, "no decoder drafts with a model"
    prompt = max(sample.prompt_tokens for sample in folder.load_samples())
    assert list(told.target.ms) == [prompt + 4]


def test_a_resumed_run_goes_by_the_recorded_costs(run_priced, monkeypatch):
    folder, _ = run_priced("resumed")
    folder.save_run(folder.load_run(), status="running")
    OWN.save(folder.path / "costs.json")
    lines = (folder.path / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder.path / "samples.jsonl").write_text(lines[0])
    monkeypatch.setattr(Costs, "measure", None)
    _, told = run_priced("resumed")
    assert told == OWN == folder.load_costs() and len(folder.load_samples()) == 4
    CostAware.told = "nothing"
    assert rebuild(folder).costs == OWN == CostAware.told, "an audit uses them too"
    monkeypatch.undo()
    _, told = run_priced("resumed", "overwrite=true")
    assert told == folder.load_costs() != OWN


def test_where_seconds_mean_nothing_costs_have_a_name(run_priced, monkeypatch):
    monkeypatch.setattr(Costs, "measure", None)
    folder, told = run_priced("untimed", "timing=false")
    assert told == Costs.load("epyc") == folder.load_costs()
    folder, told = run_priced("flat", "costs=flat")
    assert told == Costs.load("flat") == folder.load_costs()
    OWN.save(folder.path.parent / "own.json")
    folder, told = run_priced("file", "costs=own.json", "timing=false")
    assert told == replace(OWN, about={"name": "own", **OWN.about}) == folder.load_costs()
    folder, told = run_priced("its_own", "decoder.priced.costs=flat")
    assert told == "flat" and folder.load_costs() is None


def test_the_jobs_of_a_sweep_go_by_one_probe(call, saved_pair, monkeypatch):
    """Else their probes would be compared, not their settings; other models are probed anew."""
    probed = []

    def measure(*models, **options):
        probed.append(models)
        return replace(OWN, about={"spread": 0.0, "probe": len(probed)})

    monkeypatch.setattr(Costs, "measure", measure)
    swept = [*TINY, *PRICED, "results_dir=swept", "hydra.mode=MULTIRUN"]
    assert call("bench", *swept, "seed=1,2")[0] == 0
    jobs = [ResultsFolder(saved_pair / "swept" / f"00{job}") for job in range(2)]
    assert len(probed) == 1 and len({str(job.load_costs()) for job in jobs}) == 1
    assert call("bench", *swept, "overwrite=true", "max_new=5,6")[0] == 0 and len(probed) == 3
    drafting = [*TINY, PRICED[1], "results_dir=apart", "hydra.mode=MULTIRUN"]
    assert call("bench", *drafting, "decoder=[greedy],[greedy,speculative]")[0] == 0
    assert [draft is not None for _, draft in probed[3:]] == [False, True]


def test_a_noisy_probe_is_told(run_bench, monkeypatch):
    noisy = Costs(OWN.target, about={"spread": 0.45})
    monkeypatch.setattr(Costs, "measure", lambda *models, **options: noisy)
    _, _, err = run_bench(*TINY, *PRICED, "results_dir=noisy")
    assert "the measured call costs, which decoders plan with, vary by 45%" in err


def test_a_replay_goes_by_the_recorded_costs_unless_it_is_given_others(run_priced, document):
    folder, _ = run_priced("recorded", "timing=false", "costs=flat")
    for options, wanted in (([], "flat"), (["costs=epyc"], "epyc")):
        given = [*PRICED, f"recording={folder.path}", "limit=1", "model.dtype=float32", *options]
        row = document("replay", *given)["decoders"]["priced"]
        assert CostAware.told == Costs.load(wanted)
        assert ("predicted_speedup" in row) == bool(options)


def test_without_a_decoder_that_asks_nothing_is_probed(run_bench, saved_pair, monkeypatch):
    monkeypatch.setattr(Costs, "measure", None)
    assert run_bench(*TINY, "decoder=greedy", "results_dir=unasked")[0] == 0
    assert not (saved_pair / "unasked" / "costs.json").exists()
