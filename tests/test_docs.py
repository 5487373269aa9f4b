"""README and docs name only existing things, and the commands that they show are accepted."""

import os
import re
import shlex

import pytest
from composing import CONF, ROOT, composed, names
from hydra.errors import HydraException

from ouroboros.cli.main import COMMANDS, WORDS

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "hub/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
GROUPS = ("experiment", "task", "decoder", "model", "rehearsal", "draft_weights")
OUTSIDE = ("hydra/launcher=", "hydra.launcher.", "+hydra.launcher.")  # of plugins, not ours


def code_of(text: str) -> list[str]:
    """Return the lines of code blocks and the spans of code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += [line.strip() for line in rest.splitlines() if line.startswith("    ")]
    return lines + re.findall(r"`([^`\n]+)`", rest)


def commands_of(text: str) -> list[list[str]]:
    """Return the words of each `ouroboros ...` that is shown, comments left out."""
    shown = (re.sub(r"\s+#.*", "", code) for code in code_of(text))
    known = [code.replace("torchrun --nproc-per-node 2 -m ", "") for code in shown]
    return [shlex.split(code)[1:] for code in known if code.startswith("ouroboros ")]


SHOWN = {
    " ".join(words): pytest.param(
        words,
        id=f"{page.relative_to(ROOT)}: {' '.join(words)}",
        marks=[pytest.mark.slow] if page.parent != ROOT else [],
    )
    for page in reversed(PAGES)  # the first page that shows a command keeps it
    for words in commands_of(page.read_text("utf-8"))
    if words != ["..."]
}


def accept(words: list[str]) -> None:
    """Raise where a command has no such option; run nothing."""
    command, rest = words[0], words[1 + (words[0] == "generate") :]
    own = [word for word in rest if "=" in word and not word.startswith(OUTSIDE)]
    flags = {"-m", "--json", "--cfg", "job", "--resolve"}
    assert {*rest} - {*own, *flags} == set() or command in WORDS or "hydra/launcher" in str(rest)
    name = "bench" if command == "audit" else command
    composed(*(first_of(word) for word in own if "${" not in word), name=name)


def first_of(override: str) -> str:
    """Return a sweep's override with its first value alone."""
    key, _, value = override.partition("=")
    return override if value[:1] in "[{" else f"{key}={value.split(',')[0]}"


@pytest.mark.parametrize("words", SHOWN.values())
def test_a_command_that_is_shown_is_accept(words):
    if words[0].startswith("-"):
        assert words[0] in ("--help", "--version")
        return
    assert words[0].isupper() or words[0] in COMMANDS, f"ouroboros {words[0]}"
    if words[0].isupper() or len(words) == 1 or words[1] == "--help":
        return
    try:
        accept(words)
    except HydraException as error:
        pytest.fail(f"ouroboros {' '.join(words)}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_what_there_is(page):
    text = re.sub(r"<!-- results: .*? -->", "", page.read_text("utf-8"))  # may not be measured yet
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text)
    missing = [
        link
        for link in links
        if not link.startswith(("http://", "https://")) and not os.path.exists(page.parent / link)
    ]
    code = "\n".join(line for line in code_of(text) if "(" not in line)
    paths = re.findall(r"(?<![\w/.])(?:conf|scripts|ouroboros|tests|results)/[\w./-]*\w", text)
    missing += [path for path in paths if not path.startswith("results/local") and not exists(path)]
    for group in GROUPS:
        for value in re.findall(
            rf"(?<![\w.+@/]){group}=(\[[\w,]+\]|[a-z][\w.-]*\w(?![\w(/]))", code
        ):
            chosen = value.strip("[]").split(",")
            missing += [f"{group}={one}" for one in chosen if one not in known(group)]
    for target in re.findall(r"\bmake ([a-z]+)\b", code):
        if f"\n{target}:" not in (ROOT / "Makefile").read_text("utf-8"):
            missing.append(f"make {target}")
    assert not missing


def exists(path: str) -> bool:
    """Whether a path is in the repository, with or without its suffix, or stands for any NAME."""
    if "NAME" in path:
        return (ROOT / path).parent.is_dir()
    return (ROOT / path).exists() or bool(list(ROOT.glob(f"{path}.*")))


def known(group: str) -> list[str]:
    return [*names(group), "null"] if (CONF / group).exists() else []


def test_every_decoder_and_task_is_told():
    told = (ROOT / "docs" / "drafter.md").read_text("utf-8")
    told += (ROOT / "docs" / "guide" / "tasks.md").read_text("utf-8")
    skipped = ("hf_assisted_constant", "hf_assisted_defaults")
    every = [name for name in names("decoder") if name not in skipped] + names("task")
    assert [name for name in every if f"`{name}`" not in told] == []


def test_the_readme_is_short_and_its_code_runs(capsys):
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 100
    assert text.count("<!-- results: ") == text.count("<!-- end -->") > 0
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)), {})
    assert "def " in capsys.readouterr().out
