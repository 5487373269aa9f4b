"""Tables on pages match results/: edited numbers and stale folders are detected."""

import json
import lzma
from pathlib import Path

import pytest
import update_tables
from composing import ROOT
from measured import RUN
from published_tables import EQUAL, KINDS, read

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
    found = json.loads(lzma.decompress((places[0] / "samples.jsonl.xz").read_bytes()))
    assert found == {"text": '"_s": 2.5', "wall_s": 1.234568 if timing else 0.0}
    assert (places[0] / "trees.jsonl.xz").exists() is timing
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


def of(path: Path, decoders: dict, batch_size: int = 4) -> Path:
    """Write the parts of a results folder that tables read."""
    path.mkdir()
    summary = {"decoders": decoders, "prompts": 3}
    (path / "summary.json").write_text(json.dumps(summary))
    run = {**RUN, "repeats": 1, "config": {"batch_size": batch_size}}
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


def row(speedup: float, lead: float | None, **own) -> dict:
    """Return a decoder's entry of summary.json; its intervals have no width."""
    ratios = {"latency_speedup": speedup, "latency_vs_ouroboros": lead}
    known = {name: v and {"value": v, "low": v, "high": v} for name, v in ratios.items()}
    return {**known, "unequal": 0, "samples": 3, "verdicts": None, "worst_speedup": 0.9, **own}


def pairs_of_runs(root: Path, **own) -> list[Path]:
    others = {"greedy": row(1.0, 2.0, output_throughput=50.0), "racer": row(1.6, 1.2)}
    decoders = {**others, "speculative": row(1.3, 1.6), "ouroboros": row(2.0, None, **own)}
    return [of(root / f"mbpp_t{t}", decoders) for t in ("0", "08")]


def test_tasks_show_the_score_and_the_lead_over_the_best_other(tmp_path):
    runs = pairs_of_runs(tmp_path, **{"score.pass@1": {"value": 0.25}})
    frame, notes = KINDS["tasks"](*runs)
    led, speedup = "1.20x", "2.00x"
    assert list(frame.iloc[0]) == ["MBPP", "pass@1 0.25", *2 * [speedup, f"{led} racer"]]
    assert list(frame.iloc[1]) == ["geometric mean", "", *2 * ["", led]]
    assert notes[-2:] == [EQUAL, "slowest prompt 0.90x"]


def test_speedups_have_a_column_per_run_and_the_slowest_decoder_first(tmp_path):
    frame, notes = KINDS["speedups"](*pairs_of_runs(tmp_path, unequal=1))
    assert list(frame) == ["decoder", "MBPP, T = 0", "MBPP, T = 0.8"]
    names = ["greedy, tokens/s", "speculative", "racer", "Ouroboros"]
    assert list(frame.decoder) == [*names, "Ouroboros' lead over the best other"]
    column = [value.split()[0] for value in frame["MBPP, T = 0"]]
    assert column == ["50.0", "1.30x", "1.60x", "2.00x", "1.20x"]
    assert notes[-2] == "2 of 18 completions differ, not audited"
    sizes = [
        of(tmp_path / f"b{size}", read(tmp_path / "mbpp_t0")["decoders"], size) for size in (1, 4)
    ]
    assert list(KINDS["speedups"](*sizes)[0])[1:] == ["batch size 1", "batch size 4"]
