"""Tables of pages are what results/ give: a figure edited by hand and a stale folder are found."""

import json

import figures as script
import pytest
import tables
from composing import ROOT
from page_tables import KINDS, told
from tables import sources, written

PAGE = "# Mine\n\n<!-- results: headline results/main -->\n<!-- end -->\n\nText.\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with a page and the results of a run that was made by the present sources."""
    folder = tmp_path / "results" / "main"
    folder.mkdir(parents=True)
    old = ROOT / "results" / "main_matched"
    run = json.loads((old / "run.json").read_text())
    run["provenance"] |= {"sources": tables.sources_hash()}
    run["provenance"]["git"]["dirty"] = False
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "summary.json").write_text((old / "summary.json").read_text())
    (tmp_path / "README.md").write_text(PAGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*words, capsys):
    capsys.readouterr()
    code = script.figures(script.parser().parse_args(words))
    return code, capsys.readouterr().err


def test_tables_are_written_and_then_hold(root, capsys):
    assert check("--check", capsys=capsys)[0] == 1, "an empty table"
    assert check(capsys=capsys) == (0, "wrote README.md\n")
    page = (root / "README.md").read_text()
    run = json.loads((root / "results" / "main" / "run.json").read_text())
    assert run["provenance"]["git"]["commit"][:7] in page and run["provenance"]["time"][:10] in page
    assert (
        "| Ouroboros " in page and "Text." in page and run["provenance"]["machine"]["cpu"] in page
    )
    assert check("--check", capsys=capsys) == (0, "")
    assert check(capsys=capsys) == (0, "")


def test_a_figure_edited_by_hand_is_found(root, capsys):
    check(capsys=capsys)
    page = (root / "README.md").read_text()
    (root / "README.md").write_text(page.replace("1.00x [", "1.01x [", 1))
    code, error = check("--check", capsys=capsys)
    assert code == 1 and error.count("\n") == 1 and "results: headline results/main" in error
    assert check(capsys=capsys)[0] == 0 and (root / "README.md").read_text() == page


def test_a_stale_folder_is_a_warning(root, capsys, monkeypatch):
    check(capsys=capsys)
    monkeypatch.setattr(tables, "sources_hash", lambda: "another")
    code, error = check("--check", capsys=capsys)
    assert code == 0 and error.startswith("warning: README.md: results/main: made by sources that")


def test_a_folder_that_says_nothing_of_its_sources_is_stale(root):
    run = json.loads((root / "results" / "main" / "run.json").read_text())
    del run["provenance"]["sources"]
    (root / "results" / "main" / "run.json").write_text(json.dumps(run))
    (why,) = sources(PAGE, root).values()
    assert "does not say" in why


def test_folders_with_one_fault_are_one_line(root, capsys, monkeypatch):
    twice = root / "results" / "twice"
    twice.mkdir()
    for name in ("run.json", "summary.json"):
        (twice / name).write_text((root / "results" / "main" / name).read_text())
    (root / "README.md").write_text(PAGE + PAGE.replace("results/main", "results/twice"))
    check(capsys=capsys)
    monkeypatch.setattr(tables, "sources_hash", lambda: "another")
    error = check("--check", capsys=capsys)[1]
    assert error.startswith("warning: README.md: results/main, results/twice: made by sources that")


def test_what_was_not_measured_is_said(root):
    page = "<!-- results: counts results/nothing/here -->\n<!-- end -->"
    assert "scripts/reproduce/nothing.sh" in written(page, root, root)
    with pytest.raises(ValueError, match="choose from headline"):
        written(page.replace("counts", "guesses"), root, root)


def test_the_projects_own_pages_are_what_its_results_give():
    for path in (ROOT / "README.md", ROOT / "docs" / "measured.md"):
        text = path.read_text("utf-8")
        assert written(text, ROOT, path.parent) == text, "ouroboros figures writes it"
        kinds = {marker[1].split()[0] for marker in tables.MARKED.finditer(text)}
        assert kinds <= set(KINDS)


def timed_run(path, tokens_per_s, lead, *, heat="greedy (T=0)", timed=True):
    """Write the summary of a timed run in which Ouroboros leads speculation by `lead`."""
    one = {"value": 1.0, "low": 1.0, "high": 1.0}
    ahead = {"value": lead, "low": lead - 0.1, "high": lead + 0.1}
    common = {"samples": 2, "repetition_rate": 0.1, "latency_speedup": one, "unequal": 0}
    theirs = {"latency_vs_ouroboros": ahead, "calls_vs_ouroboros": ahead}
    ours = {"latency_vs_ouroboros": one, "calls_vs_ouroboros": None, "new_tokens": 34}
    rows = {
        "greedy": {**common, **dict.fromkeys(theirs), "new_tokens": 36, "output_throughput": 8.0},
        "speculative": {**common, **theirs, "new_tokens": 32, "output_throughput": 9.0},
        "ouroboros": {**common, **ours, "output_throughput": tokens_per_s},
    }
    title = f"{path.name}, 2 prompts x 48 tokens · pair · bfloat16 · {heat} · batch size 1"
    path.mkdir()
    summary = {"title": title, "timed": timed, "costs": None, "cost_ratio": 0.2, "decoders": rows}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def test_timed_runs_are_compared_in_time(tmp_path):
    paths = [timed_run(tmp_path / "a", 12.5, 1.5), timed_run(tmp_path / "b", 20.0, 0.8)]
    frame, told = KINDS["drafters"](paths)
    assert told == ["pair", "bfloat16", "greedy (T=0)"]
    assert list(frame["run"]) == [
        "a, 2 prompts x 48 tokens",
        "b, 2 prompts x 48 tokens",
        "geometric mean",
    ]
    assert list(frame["tokens a text"]) == ["18", "18", ""], "greedy's"
    assert list(frame["tokens/s"]) == ["12.5", "20.0", ""]
    assert list(frame["it is"])[:2] == ["ahead", "behind"]
    assert list(frame["best other"]) == ["speculative", "speculative", ""]


def test_one_task_at_several_lengths_has_no_mean(tmp_path):
    paths = [timed_run(tmp_path / f"a, {length}", 12.5, 1.5) for length in (512, 2048)]
    frame, _ = KINDS["drafters"](paths)
    assert len(frame) == 2


@pytest.mark.parametrize("other", [{"heat": "T=0.8"}, {"timed": False}])
def test_runs_that_one_line_cannot_describe_are_refused(tmp_path, other):
    paths = [timed_run(tmp_path / "a", 12.5, 1.5), timed_run(tmp_path / "b", 20.0, 0.8, **other)]
    with pytest.raises(ValueError, match="other settings"):
        KINDS["drafters"](paths)


def test_a_kind_of_one_folder_is_not_given_two(root):
    page = "<!-- results: headline results/main results/twice -->\n<!-- end -->"
    twice = root / "results" / "twice"
    twice.mkdir()
    (twice / "summary.json").write_text((root / "results/main/summary.json").read_text())
    with pytest.raises(ValueError, match=r"results: headline results/main .*: give one folder"):
        written(page, root, root)


@pytest.mark.parametrize(
    ("unequal", "verdicts", "says"),
    [
        (None, None, "-"),
        (0, {}, "0"),
        (2, {}, "2 of 3, not audited"),
        (2, {"tie": 2}, "2 of 3, ties"),
        (2, {"tie": 1, "BUG": 1}, "2 of 3, BUG"),
    ],
)
def test_no_verdict_is_told_that_nobody_gave(unequal, verdicts, says):
    assert told({"unequal": unequal, "verdicts": verdicts, "samples": 3}) == says


def test_the_hosts_time_has_a_column_per_context(tmp_path):
    rows = [
        {"decoder": name, "context": context, "ms_per_step": ms}
        for name, context, ms in (("greedy", 512, 0.016), ("ouroboros", 512, 0.3))
    ]
    rows.append({**rows[-1], "context": 2048, "ms_per_step": 0.5})
    (tmp_path / "host.json").write_text(json.dumps(rows))
    frame, _ = KINDS["host"]([tmp_path])
    assert list(frame["decoder"]) == ["greedy", "Ouroboros"]
    assert list(frame["512 tokens"]) == ["0.02", "0.30"]
    assert frame["2048 tokens"][1] == "0.50"
