"""The wheel, built, installed, and used from an empty folder without the checkout."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ouroboros

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "ouroboros", "baselines", "conf")
LEFT_OUT = shutil.ignore_patterns("__pycache__")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command as in a shell of its own and return its stdout."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout, built from a copy of it."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", source / "dist", source, cwd=source)
    return next((source / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Callable[..., str]:
    """Run one of the environment's programs in an empty folder, which is kept from call to call.

    The environment has the wheel alone; what the wheel needs comes from the one that runs the
    tests, whose own ouroboros comes after and through a file that is not read there.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*pip, "--no-index", wheel, cwd=folder)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    Path(site.strip(), "others.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    (folder / "empty").mkdir()
    return lambda name, *args: run(python.with_name(name), *args, cwd=folder / "empty")


def test_it_holds_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"ouroboros"}
    folders = ("reference", "bench/tasks/examples", "bench/report/templates")
    for folder in folders:
        path = (ROOT / "ouroboros" / folder).resolve()
        files = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
        own = {f"ouroboros/{folder}/{file}" for file in files if "__pycache__" not in str(file)}
        assert own and not own - names, folder


def test_the_library_is_the_wheels(installed):
    code = (
        "import ouroboros, torch; target, draft, tokenizer = ouroboros.reference(); "
        "ids = tokenizer('def f', return_tensors='pt').input_ids; "
        "out = ouroboros.generate(target, ids, draft=draft, max_new_tokens=4); "
        "print(ouroboros.__version__, len(out[0]) - len(ids[0]), ouroboros.__file__)"
    )
    version, count, place = installed("python", "-c", code).split()
    assert (version, count) == (ouroboros.__version__, "4")
    assert not Path(place).resolve().is_relative_to(ROOT)
    assert installed("ouroboros", "--version").split() == ["ouroboros", ouroboros.__version__]


def test_a_run_and_its_report_lie_in_the_current_folder(installed):
    options = ("task.limit=2", "max_new=8", "threads=1", "decoder=[greedy,speculative]")
    out = installed("ouroboros", "bench", *options)
    document = json.loads(out.splitlines()[-1])
    assert document["finished"] and document["samples"] == 4
    results = document["results"]
    assert Path(results).parts[:2] == ("results", "local")
    report = json.loads(installed("ouroboros", "report", results).splitlines()[-1])
    assert len(report) == 1
    listed = installed("python", "-c", "import os; print(*os.listdir())").split()
    assert listed == ["results"]
    page = f"import pathlib; print(pathlib.Path({results!r}, 'report', 'report.html').exists())"
    assert installed("python", "-c", page).strip() == "True"
