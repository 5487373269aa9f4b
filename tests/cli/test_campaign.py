"""`ouroboros campaign` on a tiny pair: stages, what is skipped, what fails, what is refused."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import signal
import tarfile
import time

import pytest
from composing import composed
from hydra.core.global_hydra import GlobalHydra

from ouroboros.bench.campaign.checks import Check
from ouroboros.bench.run.interrupt import Interruption
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.cli import campaign as gpu_campaign
from ouroboros.cli.campaigning import stages as campaign_stages
from ouroboros.cli.campaigning import work
from ouroboros.cli.campaigning.archive import COMPILED_BYTES, STAGE_BYTES, pack
from ouroboros.cli.campaigning.stages import Stage, run_stage
from ouroboros.cli.campaigning.work import STAGES, correct, gpu_tests, headline
from ouroboros.tuning.memory import Room

FACTS = {"rehearsal": True, "settings": "these"}


class Inline:
    """A process of this process's own: its target runs where it is started."""

    exitcode, pid = 0, None

    def __init__(self, *, target, args, name):
        self.target, self.args = target, args

    def get_context(self, method):
        raise NotImplementedError

    def start(self):
        GlobalHydra.instance().clear()
        self.target(*self.args)

    def is_alive(self):
        return False

    def join(self, timeout=None):
        """It has ended."""


@pytest.fixture
def run_campaign(saved_pair, call, monkeypatch, tmp_path):
    """Call the script in this process; return exit code, its document and stderr."""

    class Context:
        Process = Inline

    monkeypatch.setattr(gpu_campaign.multiprocessing, "get_context", lambda method: Context)
    monkeypatch.chdir(tmp_path)
    models = [f"model.{role}={saved_pair / role}" for role in ("target", "draft")]
    small = ["model=hf", *models, "model.engine=static", "model.dtype=float32", "threads=1"]
    small += ["task.limit=2", "max_new=6"]

    def run(*overrides: str) -> tuple[int, dict, str]:
        own = [f"{stage}.overrides={quoted(*small)}" for stage in ("headline", "pairs")]
        drop = ["~headline.jobs.yi", *(f"~pairs.jobs.{name}" for name in other_pairs())]
        decoders = quoted("decoder=[greedy,ouroboros,hf_assisted]")
        jobs = [f"+headline.jobs.tiny={decoders}", f"+pairs.jobs.first={decoders}"]
        code, out, err = call(
            "campaign", "shapes=small", *own, *drop, *jobs, *overrides, pair=False
        )
        lines = out.splitlines()
        return code, json.loads(lines[-1]) if lines else {}, err

    return run


def quoted(*overrides: str) -> str:
    return "[" + ",".join(f'"{one}"' for one in overrides) + "]"


def other_pairs() -> list[str]:
    return list(composed(name="campaign")["pairs"]["jobs"])


@pytest.mark.slow
def test_stages_are_measured_recorded_and_skipped(run_campaign, tmp_path):
    asked = [
        "stages=[headline,pairs]",
        "+pairs.jobs.second=" + quoted("decoder=greedy", "task=none"),
    ]
    code, document, err = run_campaign(*asked, "results_dir=out", "archive=away")
    assert code == 1 and document["rehearsal"] and not document["finished"], err
    done, failed = document["stages"]["headline"], document["stages"]["pairs"]
    assert done["status"] == "done" and not done["reason"]
    figures = done["figures"]["tiny"]
    assert set(figures["goals"]) >= {"ouroboros_over_greedy", "draft_of_floor"}
    assert all(passed is None for _, passed in figures["goals"].values())
    assert figures["tokens_per_s_and_speedup"]["greedy"][1] == 1
    assert failed["status"] == "failed" and list(failed["figures"]) == ["first"]
    assert failed["reason"].startswith("second: ") and "\n" not in failed["reason"]
    files = {path.name for path in (tmp_path / "out" / "headline" / "tiny").iterdir()}
    assert {"costs.json", "profile.md", "profile.json", "summary.md", "samples.jsonl"} <= files
    for name in ("headline", "pairs"):
        with tarfile.open(tmp_path / "away" / f"{name}.tar.gz") as archive:
            assert f"out/{name}/stage.json" in archive.getnames()
    run = json.loads((tmp_path / "out" / "headline" / "tiny" / "run.json").read_text())
    served = run["model"]["engines"]["draft"]
    assert (served["engine"], served["compiled"], served["fallback"]) == ("static", False, None)
    assert (tmp_path / "out" / "headline" / "tiny" / "idle.json").exists()
    before = (tmp_path / "out" / "pairs" / "first" / "samples.jsonl").stat().st_mtime_ns
    assert "not judged" in (tmp_path / "out" / "headline" / "tiny" / "goals.md").read_text()
    spent = failed["seconds"]
    code, document, err = run_campaign(*asked, "results_dir=out")
    assert code == 1 and document["stages"]["headline"]["skipped"]
    assert "headline: done before" in err and "pairs: begins" in err
    assert document["stages"]["pairs"]["seconds"] > spent, "of both goes"
    assert (tmp_path / "out" / "pairs" / "first" / "samples.jsonl").stat().st_mtime_ns == before
    code, _, err = run_campaign("stages=[pairs]", "results_dir=out")
    assert code == 2 and "with other settings" in err and "overwrite=true" in err
    code, document, err = run_campaign("stages=[pairs]", "results_dir=out", "overwrite=true")
    code, document, err = run_campaign("stages=[pairs]", "results_dir=out", "overwrite=true")
    assert code == 0 and document["finished"], err
    whole = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert set(whole["stages"]) == {"headline", "pairs"}, "also those of earlier calls"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["stages=[speed]"], "stages=[speed]: choose from preflight, headline"),
        (["stages=[]"], "choose from preflight"),
        (["rehearsed=false"], "needs a GPU"),
        (["stage_minutes.headline=0.1", "stages=[headline]"], "stage_minutes.headline=0.1: give"),
        (["threads=some"], "threads=some: give a whole number"),
    ],
)
def test_mistakes_are_one_line(run_campaign, monkeypatch, tmp_path, overrides, says):
    monkeypatch.setattr(gpu_campaign.torch.cuda, "is_available", lambda: False)
    code, document, err = run_campaign("results_dir=refused", *overrides)
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert code == 2 and not document and len(lines) == 1 and says in lines[0], err
    assert not (tmp_path / "refused").exists()


def stage_of(path, **options) -> Stage:
    path.mkdir(exist_ok=True)
    own = {"jobs": {}, "overrides": [], **options}
    return Stage("any", own, True, ResultsFolder(path), Interruption(lambda: None))


def test_a_stage_that_fails_or_is_stopped_says_so(tmp_path):
    def failing(stage: Stage) -> None:
        stage.attempt("good", lambda: 1)
        stage.attempt("bad", lambda: 1 / 0)
        stage.attempt("after", lambda: 3)
        stage.check("broken", lambda: 1 / 0)

    def stopped(stage: Stage) -> None:
        stage.attempt("good", lambda: 1)
        os.kill(os.getpid(), signal.SIGTERM)
        stage.attempt("never", lambda: 2)

    def broken(stage: Stage) -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    found = {}
    for stage in (failing, stopped, broken):
        run_stage(stage.__name__, stage, {}, path=tmp_path / stage.__name__, facts=FACTS)
        found[stage.__name__] = json.loads((tmp_path / stage.__name__ / "stage.json").read_text())
    own = found["failing"]
    assert own["status"] == "failed" and own["reason"] == "bad: ZeroDivisionError: division by zero"
    assert (own["figures"]["good"], own["figures"]["after"]) == (1, 3)
    assert own["figures"]["broken"]["passed"] is False
    assert "division by zero" in own["figures"]["broken"]["note"]
    assert found["stopped"]["status"] == "stopped" and found["stopped"]["figures"] == {"good": 1}
    assert found["broken"]["reason"] == "RuntimeError: CUDA error: an illegal memory access"
    assert {own["settings"] for own in found.values()} == {"these"}


def test_a_check_that_passed_is_not_made_again(tmp_path, monkeypatch):
    made: list[str] = []

    def made_again() -> list[str]:
        def work(stage: Stage) -> None:
            for name, passed in (("right", True), ("wrong", False)):
                stage.check(name, lambda n=name, p=passed: made.append(n) or Check(n, p))

        made.clear()
        run_stage("any", work, {}, path=tmp_path, facts=FACTS)
        return list(made)

    assert made_again() == ["right", "wrong"]
    assert made_again() == ["wrong"]
    monkeypatch.setattr(campaign_stages, "environment", lambda: {"code": "other"})
    assert made_again() == ["right", "wrong"]


def test_models_that_do_not_fit_are_left_out_and_a_headline_so_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign_stages, "room", lambda device: Room("GPU", 78 << 30, 78 << 30))
    pairs = composed(name="campaign")["pairs"]
    jobs = {name: pairs["jobs"][name] for name in ("llama2_gsm8k", "yi_gsm8k")}
    half = [*pairs["overrides"], "model.dtype=bfloat16"]
    stage = stage_of(tmp_path / "pairs", jobs=jobs, overrides=half, layers=[1, 0.9])
    built = stage.config("yi_gsm8k")["model"]["standin"]
    assert built == {"target": "yi-34b@54", "draft": "yi-6b@29"}
    stage.attempt("llama2", lambda: stage.config("llama2_gsm8k"))
    assert not stage.failures and "141 GiB of weights" in stage.figures["llama2"]["left_out"]
    profile = {"nodes": [1], "contexts": [512]}
    yi = {"jobs": {"yi": jobs["yi_gsm8k"]}, "overrides": half, "profile": profile}
    whole = stage_of(tmp_path / "headline", **yi)
    whole.failures["later"] = "x"
    headline(whole)
    assert next(iter(whole.failures)) == "no headline, yi" and "75 GiB" in str(whole.failures)


def test_a_package_that_is_missing_leaves_its_part_out(tmp_path):
    stage = stage_of(tmp_path / "stage")
    stage.attempt("part", lambda: importlib.import_module("no_such_package"))
    assert "no_such_package" in stage.figures["part"]["left_out"] and not stage.failures


def test_a_fallback_is_refused_unless_it_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign_stages, "fallbacks", lambda pair: ["target: not captured"])
    pair = object()
    for allowed in (True, False):
        stage = stage_of(tmp_path / str(allowed), fallbacks=allowed)
        monkeypatch.setattr(stage.pairs, "of", lambda config: pair)
        if allowed:
            assert stage.pair({}) is pair
        else:
            with pytest.raises(ValueError, match="target: not captured; fallbacks=true"):
                stage.pair({})


def test_the_checks_of_a_device(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ouroboros.cli.campaigning.work.gpu_tests", lambda: {"passed": None, "said": "none"}
    )
    monkeypatch.setattr(
        "ouroboros.cli.campaigning.work.noise_agrees", lambda device: Check("noise", True)
    )
    attention = {"layouts": [[2, 1]], "nodes": [1], "slots": [9]}
    sizes = {"dtypes": ["float32"], "nodes": [1, 3], "contexts": [4], "roll_tokens": 2}
    stage = stage_of(tmp_path / "stage", attention=attention, **sizes)
    correct(stage)
    assert stage.figures["all_passed"]["passed"] and len(stage.figures) == 2 + 1 + 2 * 3 + 1
    assert stage.figures["roll draft float32 sampled"]["passed"]


@pytest.mark.slow
def test_tests_that_need_a_gpu_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(work, "ROOT", tmp_path)
    assert gpu_tests()["passed"] is None
    file = tmp_path / "tests" / "test_it.py"
    file.parent.mkdir()
    for body, passed in (("pytest.skip()", None), ("pass", True), ("assert False", False)):
        file.write_text(f"import pytest\n@pytest.mark.gpu\ndef test_it():\n    {body}\n")
        assert gpu_tests()["passed"] is passed, body


def endless() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


def test_a_stage_is_killed_at_its_limit(monkeypatch):
    monkeypatch.setattr(gpu_campaign, "WARNED_S", 0.2)
    monkeypatch.setattr(gpu_campaign, "HURRIED_S", 0.1)
    monkeypatch.setattr(gpu_campaign, "POLL_S", 0.02)
    child = multiprocessing.get_context("fork").Process(target=endless)
    child.start()
    gpu_campaign.watch(child, time.monotonic() + 0.5)
    found = gpu_campaign.died(child, 0.5, FACTS)
    assert found["status"] == "stopped" and "SIGKILL at its time limit" in found["reason"]
    child.exitcode_of = None
    assert gpu_campaign.died(type("P", (), {"exitcode": -11})(), 1.0, FACTS)["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("shapes", ["full", "small"])
def test_every_stage_has_its_minutes_and_every_job_composes(shapes):
    config = composed(f"shapes={shapes}", name="campaign")
    assert list(STAGES) == config["stages"] == list(config["stage_minutes"])
    for name in config["stages"]:
        own = config[name]
        for job in own["jobs"].values():
            run = composed(*job, *own["overrides"])
            assert run["model"]["target"] == "reference/target"
            assert shapes == "full" or run["task"]["limit"] <= 2


PARTS = 40


def many_parts(stage: Stage) -> None:
    for number in range(PARTS):
        stage.check(str(number), lambda n=number: time.sleep(0.002) or Check(str(n), True))


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_killed_at_any_moment_keeps_what_ended(tmp_path, monkeypatch, seed):
    """Killed again and again: every file stays whole, no part that was written is made twice."""
    monkeypatch.setattr(campaign_stages, "environment", dict)
    path, draw, written = tmp_path / "out" / "stage", random.Random(seed), 0
    for attempt in range(PARTS):
        own = {"target": run_stage, "args": ("stage", many_parts, {})}
        child = multiprocessing.get_context("fork").Process(
            **own, kwargs={"path": path, "facts": FACTS}
        )
        child.start()
        child.join(None if attempt == PARTS - 1 else draw.uniform(0.02, 0.2))
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        pack(tmp_path / "out", [path], tmp_path / "away.tar.gz", STAGE_BYTES)
        file = path / "figures.json"
        found = json.loads(file.read_text())["parts"] if file.exists() else {}
        assert list(found) == [str(number) for number in range(len(found))]
        assert len(found) >= written
        written = len(found)
        if (path / "stage.json").exists():
            break
    stage = json.loads((path / "stage.json").read_text())
    assert stage["status"] == "done" and len(stage["figures"]) == PARTS
    with tarfile.open(tmp_path / "away.tar.gz") as archive:
        assert {"out/stage/stage.json", "out/stage/figures.json"} <= set(archive.getnames())


def test_archives_keep_to_what_a_machine_gives_back(tmp_path):
    assert len(STAGES) + 1 <= 8 and max(STAGE_BYTES, COMPILED_BYTES) <= 16 << 20
    assert len(STAGES) * STAGE_BYTES + COMPILED_BYTES <= 64 << 20
    (tmp_path / "large").write_bytes(os.urandom(5000))
    (tmp_path / "small").write_bytes(os.urandom(500))
    assert pack(tmp_path, [tmp_path], tmp_path.parent / "x.tar.gz", 3000) == ["large"]
    with tarfile.open(tmp_path.parent / "x.tar.gz") as archive:
        assert archive.getnames() == [f"{tmp_path.name}/small"]
    assert pack(tmp_path, [tmp_path / "none"], tmp_path.parent / "y.tar.gz", 3000) == []
    assert not (tmp_path.parent / "y.tar.gz").exists()
