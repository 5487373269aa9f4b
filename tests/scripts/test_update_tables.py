"""Tables on pages match results/: edited numbers and stale folders are detected."""

import gzip
import json
from pathlib import Path

import pytest
import update_tables
from composing import ROOT
from published_tables import KINDS, over_runs

from ouroboros.bench.metrics.intervals import Interval

PAGE = "# Mine\n\n<!-- results: headline results/main -->\n<!-- end -->\n\nText.\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with a page and the results of a run that was made by the present code."""
    folder = tmp_path / "results" / "main"
    folder.mkdir(parents=True)
    old = ROOT / "results" / "main_matched"
    run = json.loads((old / "run.json").read_text())
    run["provenance"]["git"]["dirty"] = False
    monkeypatch.setattr(update_tables, "changed_since", lambda commit: False)
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "summary.json").write_text((old / "summary.json").read_text())
    (tmp_path / "README.md").write_text(PAGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def main(capsys):
    """The command: its exit code and what it said."""

    def main(*words: str) -> tuple[int, str]:
        code = update_tables.main(words)
        return code, capsys.readouterr().err

    return main


def test_tables_are_written_and_then_hold(root, main):
    assert main("--check")[0] == 1, "an empty table"
    assert main() == (0, "wrote README.md\n")
    page = (root / "README.md").read_text()
    made = json.loads((root / "results" / "main" / "run.json").read_text())["provenance"]
    for part in (made["git"]["commit"][:7], made["time"][:10], made["machine"]["cpu"], "Text."):
        assert part in page
    assert "| Ouroboros " in page
    assert main("--check") == main() == (0, "")


def test_a_figure_edited_by_hand_is_found(root, main):
    main()
    page = (root / "README.md").read_text()
    (root / "README.md").write_text(page.replace("x [", "1x [", 1))
    code, error = main("--check")
    assert code == 1 and error.count("\n") == 1 and "results: headline results/main" in error
    assert main()[0] == 0 and (root / "README.md").read_text() == page


def test_samples_are_packed_beside_the_tables(root, main):
    paths = [root / "results" / folder / "samples.jsonl" for folder in ("main", "local")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"text": "\\"_s\\": 2.5", "wall_s": 1.23456789, "ttft_s": 1.2e-05}\n')
        path.with_name("trees.jsonl").write_text("{}\n")
    main("--check")
    assert all(path.exists() for path in paths)
    main()
    assert [path.exists() for path in paths] == [False, True], "a trial's results stay"
    packed, trees = (paths[0].with_name(f"{name}.jsonl.gz") for name in ("samples", "trees"))
    assert trees.exists()
    trees.unlink()
    trees.with_suffix("").write_text("{}\n")
    found = json.loads(gzip.decompress(packed.read_bytes()))
    assert found == {"text": '"_s": 2.5', "wall_s": 1.234568, "ttft_s": 1.2e-05}
    run = packed.with_name("run.json")
    run.write_text(json.dumps(json.loads(run.read_text()) | {"timing": False}))
    paths[0].write_bytes(gzip.decompress(packed.read_bytes()))
    update_tables.pack(root / "results")
    found = json.loads(gzip.decompress(packed.read_bytes()))
    assert found == {"text": '"_s": 2.5', "wall_s": 0.0, "ttft_s": 0.0}, "times mean nothing"
    assert not trees.exists() and not trees.with_suffix("").exists()


def test_stale_folders_are_a_warning_one_line_for_each_reason(root, main, monkeypatch):
    twice = root / "results" / "twice"
    twice.mkdir()
    for name in ("run.json", "summary.json"):
        (twice / name).write_text((root / "results" / "main" / name).read_text())
    (root / "README.md").write_text(PAGE + PAGE.replace("results/main", "results/twice"))
    main()
    monkeypatch.setattr(update_tables, "changed_since", lambda commit: True)
    code, error = main("--check")
    assert code == 0 and error.count("\n") == 1
    assert error.startswith(
        "warning: README.md: results/main, results/twice: made by code that has"
    )


def test_an_unknown_commit_is_other_code():
    assert update_tables.changed_since("0" * 40)


def test_a_folder_that_does_not_say_its_commit_is_stale(root):
    run = json.loads((root / "results" / "main" / "run.json").read_text())
    del run["provenance"]["git"]
    (root / "results" / "main" / "run.json").write_text(json.dumps(run))
    assert "does not say" in (update_tables.stale(root / "results" / "main") or "")


def test_results_of_other_code_are_moved_before_new_ones_are_made(root, monkeypatch, main):
    folder = Path("results", "main")
    main("--begin", str(folder))
    assert (folder / "run.json").exists(), "of the present code: kept"
    monkeypatch.setattr(update_tables, "changed_since", lambda commit: True)
    for _ in range(2):
        assert "results of other code are now in" in main("--begin", str(folder))[1]
        assert [path.name for path in folder.iterdir()] == ["provenance.json"]
    moved = root / "results" / "local" / "before"
    assert (moved / "results-main" / "run.json").exists() and (moved / "results-main-1").exists()


def test_what_was_not_measured_and_what_is_no_table_is_said(root):
    missing = update_tables.table("counts results/nothing/here", root, root)
    assert "scripts/reproduce/all.sh nothing" in missing
    with pytest.raises(ValueError, match="choose from headline"):
        update_tables.table("guesses results/main", root, root)


def test_the_projects_own_pages_are_what_its_results_give(monkeypatch, main):
    monkeypatch.chdir(ROOT)
    code, error = main("--check")
    assert code == 0, error


def test_runs_of_different_settings_are_refused():
    folders = [ROOT / "results" / name for name in ("tasks/48/gsm8k", "drafters_epyc/gsm8k_t0")]
    with pytest.raises(ValueError, match="different settings"):
        KINDS["drafters"][0](*folders)


@pytest.mark.parametrize(
    ("unequal", "verdicts", "cells"),
    [
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
    frame, _ = KINDS["verdicts"][0](tmp_path)
    assert list(frame.iloc[0])[3:] == cells


def test_a_mean_over_runs_has_a_narrower_interval_than_one_run():
    wide = Interval(2.0, 1.0, 4.0)
    both = over_runs([wide, Interval(8.0, 4.0, 16.0)])
    assert vars(over_runs([wide])) == pytest.approx(vars(wide))
    assert both.value == pytest.approx(4.0)
    assert both.high == pytest.approx(4.0 * 2 ** (1 / 2**0.5))
    assert over_runs([Interval(2.0), Interval(8.0, 7.0, 9.0)]) == Interval(4.0)
