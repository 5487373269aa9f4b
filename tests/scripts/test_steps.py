"""Scripts of measurements: finished steps are skipped, interrupted ones resume, failures are named,
and every command that they give is accepted."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile

import pytest
from composing import ROOT, composed

from ouroboros.bench.run.pair import PairSpec
from ouroboros.cli.main import COMMANDS

ALL = ROOT / "scripts" / "reproduce" / "all.sh"
TABLES = re.findall(r'^TABLES="(.*?)"', ALL.read_text(), re.DOTALL | re.MULTILINE)[0].split()
SCRIPTS = sorted((ROOT / "scripts" / "gpu").glob("*.sh"))
QUICK = (TABLES[0], SCRIPTS[-1])
GPU = [path for path in SCRIPTS if path.stem not in ("all", "common")]
CONFIGS = {"bench": "config", "profile": "profiling"}
SCRIPT = """
source {steps}
cd {folder}
measure one bench limit=1 && step one after.json "$PYTHON" -m ouroboros overlap
measure two bench limit=2
finish
"""
PYTHON = """#!/bin/sh
echo "$*" >> {folder}/asked
case "$*" in *{fails}*) echo "no such thing" >&2; exit {code};; esac
case "$*" in *results_dir=*)
  cd "${{*##*results_dir=}}" && echo '"status": "finished"' > run.json && echo > summary.md;;
esac
echo '{{"made": true}}'
"""


def bash(*words, cwd=None, check=False, **variables) -> subprocess.CompletedProcess:
    """Run a script with further environment variables."""
    how = {"env": {**os.environ, **variables}, "cwd": cwd, "check": check}
    return subprocess.run(["bash", *words], capture_output=True, text=True, **how)


@pytest.fixture
def run(tmp_path):
    """Run a script of two runs and a step between, with a program in ouroboros' place."""
    (tmp_path / "script.sh").write_text(
        SCRIPT.format(steps=ROOT / "scripts" / "steps.sh", folder=tmp_path)
    )

    def run(fails: str = "nothing", code: int = 1, **variables: str) -> tuple[int, list[str], str]:
        program = tmp_path / "python"
        program.write_text(PYTHON.format(folder=tmp_path, fails=fails, code=code))
        program.chmod(0o755)
        (tmp_path / "asked").write_text("")
        done = bash(tmp_path / "script.sh", PYTHON=str(program), **variables)
        asked = (tmp_path / "asked").read_text().splitlines()
        return done.returncode, [" ".join(line.split()[3:]) for line in asked], done.stderr

    return run


def test_finished_steps_are_skipped(run, tmp_path):
    code, asked, _ = run()
    assert code == 0
    assert asked == ["limit=1 results_dir=results/one", "", "limit=2 results_dir=results/two"]
    assert (tmp_path / "results" / "one" / "after.json").read_text() == '{"made": true}\n'
    code, asked, said = run()
    assert (code, asked) == (0, []) and said.count("finished before") == 3


def test_a_failure_is_named_and_the_rest_runs(run):
    code, asked, said = run(fails="limit=1")
    assert code == 1 and len(asked) == 2, "what needs the failed run is not begun"
    assert "results/one: FAILED with exit code 1: no such thing" in said
    assert said.splitlines()[-1] == "failed: results/one/"
    code, asked, _ = run()
    assert code == 0 and len(asked) == 2, "from where it failed"


def test_an_interruption_ends_the_script_and_resumes(run):
    code, asked, said = run(fails="limit=1", code=130)
    assert (code, len(asked)) == (130, 1) and "interrupted: rerun to resume" in said
    assert run()[0] == 0


def test_a_run_that_was_killed_before_its_report_gets_one(run, tmp_path):
    run()
    (tmp_path / "results" / "one" / "summary.md").unlink()
    code, asked, _ = run()
    assert (code, asked) == (0, ["results/one remake=true"])


def test_a_run_that_was_killed_in_its_audit_gets_one(run, tmp_path):
    run()
    script = tmp_path / "script.sh"
    script.write_text(script.read_text().replace("limit=2", "limit=2 audit=all"))
    assert [run()[1] for _ in range(2)] == [["results/two"], []]


def test_extra_options_and_a_results_folder_are_added(run):
    _, asked, _ = run(EXTRA="max_new=4", RESULTS="elsewhere")
    assert asked[0] == "limit=1 results_dir=elsewhere/one max_new=4"


def commands(*script, **variables) -> list[list[str]]:
    """The words of each `ouroboros` command that a script gives."""
    done = bash(*script, check=True, **{"DRY": "1", "DATA": "data", **variables})
    lines = (line.partition(" -m ouroboros ")[2] for line in done.stdout.splitlines())
    return [line.split() for line in lines if line]


def test_all_runs_every_script():
    listed = GPU[0].with_name("all.sh").read_text().replace(";", " ").split()
    assert {path.stem for path in GPU} <= set(listed)


def test_a_table_that_is_not_known_is_refused():
    done = bash(ALL, "nothing")
    assert done.returncode == 2 and "no table nothing: choose from equality" in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=[] if script[-1] in QUICK else pytest.mark.slow)
        for script in [*((ALL, table) for table in TABLES), *((path,) for path in GPU)]
    ],
    ids=lambda script: getattr(script[-1], "stem", script[-1]),
)
def test_every_scripts_commands_are_accepted(script):
    found = commands(*script)
    named = getattr(script[-1], "stem", script[-1])
    assert found or named in ("call_times", "host", "lm_eval", "preflight")
    found += commands(*script, REHEARSE="1") * (script[0] in GPU)
    assert {words[0] for words in found} <= COMMANDS.keys(), found
    left_out = re.compile(r"hydra\.mode=RUN|results_dir=")
    distinct = {  # commands that differ in a number or a folder are tried once
        tuple(re.sub(r"=[\d.]+$", "=1", word) for word in words if not left_out.match(word)): words
        for words in found
        if words[0] in CONFIGS
    }
    for words in distinct.values():
        refused = ("experiment=", "rehearsal=") if words[0] == "profile" else ()
        assert not any(word.startswith(refused) for word in words)
        options = [word for word in words[1:] if word != "hydra.mode=RUN"]
        PairSpec(**composed(*options, name=CONFIGS[words[0]])["model"])


@pytest.mark.parametrize("found", ["model.engine=tuned draft_weights=int8\n", "\n"])
def test_the_headline_is_repeated_with_what_the_costs_found(tmp_path, found):
    """All commands have the options, and folders of their own; without a gain there are none."""
    headline = ROOT / "scripts" / "gpu" / "headline.sh"
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "gains.txt").write_text(found)
    given = commands(headline, "0.8", "gains", RESULTS=str(tmp_path))
    assert len(given) == (len(commands(headline)) if found.strip() else 0)
    for words in given:
        assert set(found.split()) < set(words) and "temperature=0" not in words
        assert "_gains" in words[-1] and words[-1].startswith("results_dir=")
    (tmp_path / "costs" / "gains.txt").unlink()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        commands(headline, "0.8", "gains", RESULTS=str(tmp_path), DRY="")
    assert "run costs.sh first" in failed.value.stderr


def test_all_stages_are_printed_before_any_has_run(tmp_path):
    given = commands(GPU[0].with_name("all.sh"), RESULTS=str(tmp_path / "none"))
    assert len(given) > len(GPU)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("false", 1, "failed: results/stage/done"),
        ("sleep 20", 130, "interrupted: rerun to resume"),
        ("true", 0, "done done"),
    ],
)
def test_a_stage_leaves_an_archive_however_it_ends(tmp_path, command, code, said):
    stage, common = tmp_path / "stage.sh", ROOT / "scripts" / "gpu" / "common.sh"
    lines = ["LIMIT_S=1", f"source {common}", f"cd {tmp_path}", f"step stage done {command}"]
    stage.write_text("\n".join([*lines, "finish"]))
    (tmp_path / "results" / "compiled").mkdir(parents=True)
    for name, size in (("most", 5 << 20), ("more", (5 << 20) + 1)):
        (tmp_path / "results" / "compiled" / name).write_bytes(bytes(size))
    done = bash(stage, OUT=str(tmp_path / "away"), RESULTS="results")
    assert done.returncode == code and said in done.stderr
    with tarfile.open(tmp_path / "away" / "stage.tar.gz") as archive:
        names = archive.getnames()
        assert any("logs" in name for name in names) and "results/stage/environment.txt" in names
    with tarfile.open(tmp_path / "away" / "compiled.tar.gz") as archive:
        assert archive.getnames() == ["results/compiled/most"]
    assert "not in the archive: results/compiled/more" in done.stderr


def test_a_machine_without_packages_installs_the_wheels_or_names_them(tmp_path):
    """In the checkout, from whatever folder the stage is started."""
    for name in ("steps.sh", "gpu/common.sh", "gpu/preflight.sh"):
        (tmp_path / "scripts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\nexit 1\n')
    program.chmod(0o755)

    def stage() -> str:
        done = bash("preflight.sh", cwd=tmp_path / "scripts" / "gpu", PYTHON=str(program))
        assert done.returncode == 1
        return done.stderr

    assert "no wheels in build/gpu: send that folder too" in " ".join(stage().split())
    (tmp_path / "build" / "gpu").mkdir(parents=True)
    (tmp_path / "build" / "gpu" / "one.whl").write_bytes(b"x")
    stage()
    asked = (tmp_path / "asked").read_text().splitlines()[-1]
    assert asked.endswith(f"--target {tmp_path}/build/site build/gpu/one.whl")
