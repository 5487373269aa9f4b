"""Scripts of measurements: finished steps are skipped, interrupted ones resume, failures are named,
and every command that they give is accepted."""

import os
import re
import subprocess
import tarfile

import pytest
from composing import ROOT, composed

from ouroboros.bench.run.pair import PairSpec
from ouroboros.cli.main import COMMANDS

SCRIPTS = ROOT / "scripts"
ALL = SCRIPTS / "reproduce" / "all.sh"
TABLES = re.findall(r'^TABLES="(.*?)"', ALL.read_text(), re.MULTILINE)[0].split()
STAGES = [p for p in sorted((SCRIPTS / "gpu").glob("*.sh")) if p.stem not in ("all", "common")]
SCRIPT = """
source {steps}
cd {folder}
measure one bench limit=1 && step one after.json "$PYTHON" -m ouroboros overlap
measure two bench limit=2 audit=all
finish
"""
PYTHON = """#!/bin/sh
echo "$*" >> {folder}/asked
case "$*" in *{fails}*) echo "no such thing" >&2; exit {code};; esac
case "$*" in *results_dir=*)
  cd "${{*##*results_dir=}}" && echo '"status": "finished"' > run.json && echo > summary.md
  echo > audit.jsonl;;
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
    (tmp_path / "script.sh").write_text(SCRIPT.format(steps=SCRIPTS / "steps.sh", folder=tmp_path))

    def run(fails: str = "nothing", code: int = 1, **variables: str) -> tuple[int, list[str], str]:
        program = tmp_path / "python"
        program.write_text(PYTHON.format(folder=tmp_path, fails=fails, code=code))
        program.chmod(0o755)
        (tmp_path / "asked").write_text("")
        done = bash(tmp_path / "script.sh", PYTHON=str(program), **variables)
        asked = (tmp_path / "asked").read_text().splitlines()
        return done.returncode, [" ".join(line.split()[3:]) for line in asked], done.stderr

    return run


def test_finished_steps_are_skipped_and_killed_reports_and_audits_are_made(run, tmp_path):
    code, asked, _ = run()
    assert (code, asked[0]) == (0, "limit=1 results_dir=results/one")
    assert asked[1:] == ["", "limit=2 audit=all results_dir=results/two"]
    assert (tmp_path / "results" / "one" / "after.json").read_text() == '{"made": true}\n'
    code, asked, said = run()
    assert (code, asked) == (0, []) and said.count("finished before") == 3
    (tmp_path / "results" / "one" / "summary.md").unlink()
    (tmp_path / "results" / "two" / "audit.jsonl").unlink()
    assert run()[:2] == (0, ["results/one remake=true", "results/two"])
    _, asked, _ = run(EXTRA="max_new=4", RESULTS="elsewhere")
    assert asked[0] == "limit=1 results_dir=elsewhere/one max_new=4"


def test_a_failure_is_named_and_the_rest_runs_but_an_interruption_ends_the_script(run):
    code, asked, said = run(fails="limit=1", code=130)
    assert (code, len(asked)) == (130, 1) and "interrupted: rerun to resume" in said
    code, asked, said = run(fails="limit=1")
    assert code == 1 and len(asked) == 2, "what needs the failed run is not begun"
    assert "results/one: FAILED with exit code 1: no such thing" in said
    assert said.splitlines()[-1] == "failed: results/one/"
    code, asked, _ = run()
    assert code == 0 and len(asked) == 2, "from where it failed"


def commands(*script, **variables) -> list[list[str]]:
    """The words of each `ouroboros` command that a script gives."""
    done = bash(*script, check=True, **{"DRY": "1", "DATA": "data", **variables})
    lines = (line.partition(" -m ouroboros ")[2] for line in done.stdout.splitlines())
    first = (re.sub(r"(--multirun )|(?<=temperature=0.8),0", "", line) for line in lines)
    return [line.split() for line in first if line]


def test_all_runs_every_stage_and_an_unknown_table_is_refused(tmp_path):
    script = SCRIPTS / "gpu" / "all.sh"
    assert {path.stem for path in STAGES} <= set(script.read_text().replace(";", " ").split())
    assert len(commands(script, RESULTS=str(tmp_path / "none"))) > len(STAGES)
    done = bash(ALL, "nothing")
    assert done.returncode == 2 and "no table nothing: choose from headline" in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=[] if script[-1] in ("peers", STAGES[-1]) else pytest.mark.slow)
        for script in [*((ALL, table) for table in TABLES), *((path,) for path in STAGES)]
    ],
    ids=lambda script: getattr(script[-1], "stem", script[-1]),
)
def test_every_scripts_commands_are_accepted(script):
    found = commands(*script)
    assert found or script[-1].stem in ("preflight", "costs")
    found += commands(*script, REHEARSE="1") * (script[0] in STAGES)
    assert {words[0] for words in found} <= COMMANDS.keys(), found
    distinct = {}  # commands that differ in a number or a folder are tried once
    for words in found:
        if words[0] == "bench":
            own = (w for w in words if not w.startswith("results_dir="))
            distinct[tuple(re.sub(r"=[\d.]+$", "=1", word) for word in own)] = words
    for words in distinct.values():
        PairSpec(**composed(*words[1:], name=words[0])["model"])


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("false", 1, "failed: results/stage/done"),
        ("sleep 20", 130, "interrupted: rerun to resume"),
        ("true", 0, "done done"),
    ],
)
def test_a_stage_leaves_an_archive_however_it_ends(tmp_path, command, code, said):
    stage, compiled = tmp_path / "stage.sh", tmp_path / "results" / "compiled"
    lines = ["LIMIT_S=1", f"source {SCRIPTS}/gpu/common.sh", f"cd {tmp_path}"]
    stage.write_text("\n".join([*lines, f"step stage done {command}", "finish"]))
    compiled.mkdir(parents=True)
    for name, size in (("most", 5 << 20), ("more", (5 << 20) + 1)):
        (compiled / name).write_bytes(bytes(size))
    done = bash(stage, OUT=str(tmp_path / "away"), RESULTS="results")
    assert done.returncode == code and said in done.stderr
    with tarfile.open(tmp_path / "away" / "stage.tar.gz") as archive:
        names = archive.getnames()
        assert any("logs" in name for name in names) and "results/stage/environment.txt" in names
    with tarfile.open(tmp_path / "away" / "compiled.tar.gz") as archive:
        assert archive.getnames() == ["results/compiled/most"]
    assert "not in the archive: results/compiled/more" in done.stderr
