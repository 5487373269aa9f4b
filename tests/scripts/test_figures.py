"""Tables of pages are what results/ give: edited figures and stale folders are found."""

import json
from pathlib import Path

import figures
import pytest
from composing import ROOT
from figures import begin, stale, written
from tables import KINDS, label

PAGE = "# Mine\n\n<!-- results: headline results/main -->\n<!-- end -->\n\nText.\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with a page and the results of a run that was made by the present sources."""
    folder = tmp_path / "results" / "main"
    folder.mkdir(parents=True)
    old = ROOT / "results" / "main_matched"
    run = json.loads((old / "run.json").read_text())
    run["provenance"] |= {"sources": figures.sources_hash()}
    run["provenance"]["git"]["dirty"] = False
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "summary.json").write_text((old / "summary.json").read_text())
    (tmp_path / "README.md").write_text(PAGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*words, capsys):
    capsys.readouterr()
    code = figures.main(words)
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


def test_samples_are_packed_beside_the_tables(root, capsys):
    for folder in ("main", "local"):
        path = root / "results" / folder / "samples.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"wall_s": 1.23456789}\n')
    assert check("--check", capsys=capsys)[0] == 1 and path.exists()
    check(capsys=capsys)
    assert path.exists(), "a trial's results stay as they are"
    assert not (root / "results" / "main" / "samples.jsonl").exists()
    assert (root / "results" / "main" / "samples.jsonl.gz").exists()


def test_a_figure_edited_by_hand_is_found(root, capsys):
    check(capsys=capsys)
    page = (root / "README.md").read_text()
    (root / "README.md").write_text(page.replace("x [", "1x [", 1))
    code, error = check("--check", capsys=capsys)
    assert code == 1 and error.count("\n") == 1 and "results: headline results/main" in error
    assert check(capsys=capsys)[0] == 0 and (root / "README.md").read_text() == page


def test_a_stale_folder_is_a_warning(root, capsys, monkeypatch):
    check(capsys=capsys)
    monkeypatch.setattr(figures, "sources_hash", lambda: "another")
    code, error = check("--check", capsys=capsys)
    assert code == 0 and error.startswith("warning: README.md: results/main: made by sources that")


def test_a_folder_that_does_not_say_its_sources_is_stale(root):
    run = json.loads((root / "results" / "main" / "run.json").read_text())
    del run["provenance"]["sources"]
    (root / "results" / "main" / "run.json").write_text(json.dumps(run))
    assert "does not say" in (stale(root / "results" / "main") or "")


def test_results_of_other_sources_are_moved_before_new_ones_are_made(root, monkeypatch, capsys):
    folder = Path("results", "main")
    begin(folder)
    assert (folder / "run.json").exists(), "of the present sources: kept"
    for count in range(2):
        monkeypatch.setattr(figures, "sources_hash", lambda count=count: f"other {count}")
        begin(folder)
        assert [path.name for path in folder.iterdir()] == ["provenance.json"]
    moved = root / "results" / "local" / "before"
    assert (moved / "results-main" / "run.json").exists() and (moved / "results-main-1").exists()
    assert "results of other sources are now in" in capsys.readouterr().err


def test_folders_with_one_fault_are_one_line(root, capsys, monkeypatch):
    twice = root / "results" / "twice"
    twice.mkdir()
    for name in ("run.json", "summary.json"):
        (twice / name).write_text((root / "results" / "main" / name).read_text())
    (root / "README.md").write_text(PAGE + PAGE.replace("results/main", "results/twice"))
    check(capsys=capsys)
    monkeypatch.setattr(figures, "sources_hash", lambda: "another")
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
        assert written(text, ROOT, path.parent) == text, "make figures writes it"
        kinds = {marker[1].split()[0] for marker in figures.MARKED.finditer(text)}
        assert kinds <= set(KINDS)


def timed_run(path, tokens_per_s, lead, *, temperature=0.0, timed=True, task=None):
    """Write the documents of a timed run in which Ouroboros leads speculation by `lead`."""
    one = {"value": 1.0, "low": 1.0, "high": 1.0}
    ahead = {"value": lead, "low": lead - 0.1, "high": lead + 0.1}
    common = {"latency_speedup": one, "latency_vs_ouroboros": None, "predicted_speedup": one}
    rows = {
        "greedy": {**common, "output_throughput": 8.0, "predicted_vs_ouroboros": ahead},
        "speculative": {**common, "output_throughput": 9.0, "latency_vs_ouroboros": ahead},
        "ouroboros": {**common, "output_throughput": tokens_per_s},
    }
    path.mkdir()
    summary = {"prompts": 2, "timed": timed, "costs": None, "decoders": rows}
    (path / "summary.json").write_text(json.dumps(summary))
    run = {
        "task": {"name": task or path.name},
        "max_new": 48,
        "repeats": 1,
        "sampling": {"temperature": temperature},
        "model": {"name": "pair", "standin": None, "dtype": "bfloat16"},
    }
    (path / "run.json").write_text(json.dumps(run))
    return path


def test_timed_runs_are_compared_in_time(tmp_path):
    paths = [timed_run(tmp_path / "a", 12.5, 1.5), timed_run(tmp_path / "b", 20.0, 0.8)]
    frame, notes = KINDS["drafters"][0](paths)
    assert notes == ["bfloat16", "greedy (T = 0)"]
    assert list(frame["run"]) == ["a", "b", "geometric mean"]
    assert list(frame["tokens/s"]) == ["12.5", "20.0", ""]
    assert list(frame["verdict"])[:2] == ["ahead", "behind"]
    assert list(frame["best other"]) == ["speculative", "speculative", ""]


def test_one_task_at_several_lengths_has_no_mean(tmp_path):
    paths = [timed_run(tmp_path / f"c{length}", 12.5, 1.5, task="a") for length in (512, 2048)]
    frame, _ = KINDS["drafters"][0](paths)
    assert list(frame["run"]) == ["512 tokens", "2048 tokens"]


@pytest.mark.parametrize("other", [{"temperature": 0.8}, {"timed": False}])
def test_runs_of_different_settings_are_refused(tmp_path, other):
    paths = [timed_run(tmp_path / "a", 12.5, 1.5), timed_run(tmp_path / "b", 20.0, 0.8, **other)]
    with pytest.raises(ValueError, match="different settings"):
        KINDS["drafters"][0](paths)


def test_a_kind_of_one_folder_is_not_given_two(root):
    page = "<!-- results: headline results/main results/twice -->\n<!-- end -->"
    twice = root / "results" / "twice"
    twice.mkdir()
    (twice / "summary.json").write_text((root / "results/main/summary.json").read_text())
    with pytest.raises(ValueError, match=r"results: headline results/main .*: give one folder"):
        written(page, root, root)


@pytest.mark.parametrize(
    ("unequal", "verdicts", "cells"),
    [
        (None, None, ["0", "0", "0"]),
        (0, {"identical": 3}, ["0", "0", "0"]),
        (2, None, ["2", "-", "-"]),
        (2, {"numeric tie": 2}, ["2", "2", "0"]),
        (2, {"numeric tie": 1, "BUG": 1}, ["2", "1", "1"]),
    ],
)
def test_a_verdict_is_shown_only_if_an_audit_gave_it(tmp_path, unequal, verdicts, cells):
    row = {"unequal": unequal, "verdicts": verdicts, "samples": 3}
    summary = {"decoders": {"greedy": row, "speculative": row}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    frame, _ = KINDS["verdicts"][0]([tmp_path])
    assert list(frame.iloc[0])[3:] == cells


@pytest.mark.parametrize(
    ("name", "words"),
    [("cnndm_t08", "cnndm, T = 0.8"), ("t10_bf16", "T = 1.0, bf16"), ("c512", "512 tokens")],
)
def test_a_folder_is_named_in_words(name, words):
    assert label(Path(name)) == words


def test_the_hosts_time_has_a_column_per_context(tmp_path):
    rows = [
        {"decoder": name, "context": context, "ms_per_step": ms}
        for name, context, ms in (("greedy", 512, 0.016), ("ouroboros", 512, 0.3))
    ]
    rows.append({**rows[-1], "context": 2048, "ms_per_step": 0.5})
    (tmp_path / "host.json").write_text(json.dumps(rows))
    frame, _ = KINDS["host"][0]([tmp_path])
    assert list(frame["decoder"]) == ["greedy", "Ouroboros"]
    assert list(frame["512 tokens"]) == ["0.02", "0.30"]
    assert frame["2048 tokens"][1] == "0.50"
