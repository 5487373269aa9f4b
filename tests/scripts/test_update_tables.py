"""Tables on pages match results/: edited numbers and stale folders are detected."""

import gzip
import json
from pathlib import Path

import pytest
import update_tables
from composing import ROOT
from measured import RUN
from published_tables import KINDS

PAGE = "# Mine\n\n<!-- results: headline results/main -->\n<!-- end -->\n\nText.\n"
OLD = ROOT / "results" / "headline" / "humaneval_t0"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with a page and the results of a run that was made by the present code."""
    folder = tmp_path / "results" / "main"
    folder.mkdir(parents=True)
    run = json.loads((OLD / "run.json").read_text())
    run["provenance"]["git"]["dirty"] = False
    monkeypatch.setattr(update_tables, "changed_since", lambda commit: False)
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "summary.json").write_text((OLD / "summary.json").read_text())
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


def test_tables_are_written_and_edited_numbers_are_found(root, main, monkeypatch):
    assert main("--check")[0] == 1, "an empty table"
    assert main() == (0, "wrote README.md\n")
    page = (root / "README.md").read_text()
    made = json.loads((root / "results" / "main" / "run.json").read_text())["provenance"]
    for part in (made["git"]["commit"][:7], made["time"][:10], made["machine"]["cpu"], "Text."):
        assert part in page
    assert "| Ouroboros " in page
    assert main("--check") == main() == (0, "")
    (root / "README.md").write_text(page.replace("x [", "1x [", 1))
    code, error = main("--check")
    assert code == 1 and error.count("\n") == 1 and "results: headline results/main" in error
    assert main()[0] == 0 and (root / "README.md").read_text() == page
    monkeypatch.setattr(update_tables, "changed_since", lambda commit: True)
    code, error = main("--check")
    assert code == 0 and error.startswith("warning: README.md: results/main: made by code that has")


@pytest.mark.parametrize("timing", [True, False])
def test_samples_are_packed_beside_the_tables(root, timing):
    """Untimed runs without times, which mean nothing, and without trees; results/local stays."""
    places = [root / "results" / folder for folder in ("main", "local")]
    for place in places:
        place.mkdir(exist_ok=True)
        (place / "samples.jsonl").write_text('{"text": "\\"_s\\": 2.5", "wall_s": 1.23456789}\n')
        (place / "trees.jsonl").write_text("{}\n")
    run = places[0] / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"timing": timing}))
    update_tables.pack(root / "results")
    found = json.loads(gzip.decompress((places[0] / "samples.jsonl.gz").read_bytes()))
    assert found == {"text": '"_s": 2.5', "wall_s": 1.234568 if timing else 0.0}
    assert (places[0] / "trees.jsonl.gz").exists() is timing
    assert not list(places[0].glob("*.jsonl")) and len(list(places[1].iterdir())) == 2


def test_an_unknown_commit_is_other_code_and_a_folder_without_one_stale(root, monkeypatch):
    monkeypatch.undo()
    assert update_tables.changed_since("0" * 40)
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


def test_missing_results_and_unknown_kinds_are_named(root):
    missing = update_tables.table("tasks results/nothing/here", root, root)
    assert "scripts/reproduce/all.sh nothing" in missing
    with pytest.raises(ValueError, match="choose from headline"):
        update_tables.table("guesses results/main", root, root)


def test_the_projects_own_pages_are_what_its_results_give(monkeypatch, main):
    monkeypatch.chdir(ROOT)
    code, error = main("--check")
    assert code == 0, error


def of(path: Path, decoders: dict) -> Path:
    """Write the parts of a results folder that tables read."""
    path.mkdir()
    summary = {"decoders": decoders, "prompts": 3}
    (path / "summary.json").write_text(json.dumps(summary))
    run = {**RUN, "repeats": 1, "config": {"batch_size": 4}}
    (path / "run.json").write_text(json.dumps(run))
    return path


@pytest.mark.parametrize(
    ("unequal", "verdicts", "cells"),
    [
        (0, {"identical": 3}, ["0", "0", "0"]),
        (2, None, ["2", "-", "-"]),
        (2, {"numeric tie": 1, "BUG": 1}, ["2", "1", "1"]),
    ],
)
def test_a_verdict_is_shown_only_if_an_audit_gave_it(tmp_path, unequal, verdicts, cells):
    row = {"unequal": unequal, "verdicts": verdicts, "samples": 3}
    frame, _ = KINDS["verdicts"](of(tmp_path / "a", {"greedy": row, "speculative": row}))
    assert list(frame.iloc[0])[3:] == cells


def test_tasks_show_the_score_and_the_lead_over_the_best_other(tmp_path):
    def row(lead: float, **own) -> dict:
        return {"latency_vs_ouroboros": {"value": lead, "low": lead, "high": lead}, **own}

    ours = row(1.0, latency_speedup={"value": 2.0, "low": 1.5, "high": 2.5})
    ours |= {"slower_share": 0.1, "worst_speedup": 0.9, "score.pass@1": {"value": 0.25}}
    others = {"greedy": row(2.0), "racer": row(1.2), "speculative": row(1.6)}
    runs = [of(tmp_path / f"mbpp_t{t}", {**others, "ouroboros": ours}) for t in ("0", "08")]
    frame, _ = KINDS["tasks"](*runs)
    cells = ["pass@1 0.25", "2.00x [1.50, 2.50]", "racer", "1.20x", "10%, 0.90x"]
    assert list(frame.iloc[1]) == ["mbpp, T = 0.8", *cells]
    assert list(frame.iloc[2]) == ["geometric mean", "", "", "", "1.20x", ""]
