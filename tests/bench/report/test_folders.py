"""Reports over several folders: sweeps, unreadable folders."""

import csv
import json
import re
from dataclasses import replace

import pytest
from measured import FAST, GREEDY, RUN, sample, write_run

from ouroboros.bench.report import style
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.bench.report.plots import batch_lines
from ouroboros.bench.report.report import sections, summarised, swept
from ouroboros.bench.report.tables import run_table
from ouroboros.cli.main import main


@pytest.fixture
def unplotted():
    """Leaves empty files in place of plots, which take most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", lambda figure, *paths: [path.touch() for path in paths])
        yield patch


def write(path, **facts):
    """Write and load a run of both decoders on two prompts."""
    write_run(path, {**RUN, **facts}, [*GREEDY, *FAST])
    return load(path)


def report(*arguments):
    return main(["report", *map(str, arguments)])


def sweep(path, values=(2, 4, 8), **facts):
    for job, gamma in enumerate(values):
        config = {"max_new": None, "decoder": {"fast": {"gamma": gamma, "draft": "x"}}}
        write(path / f"{job:03d}", identity=str(gamma), config=config, **facts)
    return path


@pytest.mark.parametrize(
    ("configs", "found"),
    [
        ([{}, {"a": None}], []),
        (
            [{"a": {"c": n}, "b": {"c": n % 2}} for n in range(3)],
            [("a.c", [0, 1, 2], ["a.c"]), ("b.c", [0, 1, 0], ["b.c"])],
        ),
        (
            [{"a": {"g": g, "w": w}, "b": {"g": g, "v": w}} for g, w in ((2, 1), (4, 1), (2, 3))],
            [("g", [2, 4, 2], ["a.g", "b.g"]), ("w", [1, 1, 3], ["a.w", "b.v"])],
        ),
        (
            [{"repeats": 2, "batch_size": 1}, {"repeats": 1, "batch_size": 2}],
            [("repeats", [2, 1], ["repeats", "batch_size"])],
        ),
    ],
)
def test_what_a_sweep_varied(configs, found):
    assert swept([{"config": config} for config in configs]) == found


def test_a_sweep_that_was_not_timed_shows_counts(tmp_path):
    folder = sweep(tmp_path / "s", timing=False)
    runs = summarised([load(path) for path in run_folders(folder)])
    part = sections(runs)[0]
    assert [table.name for table in part.tables] == ["s-calls_per_token"]
    assert len(part.pictures) == 1 and len(part.pictures[0].figure.axes) == 1
    for summary in runs:
        assert summary.frame["latency_speedup"].isna().all()
        assert any("Counts only" in note for note in summary.notes)


def test_runs_are_found_below_a_folder_and_behind_links(tmp_path):
    write(tmp_path / "x")
    jobs = run_folders(sweep(tmp_path / "x", values=(2, 4)))
    assert [path.name for path in jobs] == ["x", "000", "001"]
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "one").symlink_to(tmp_path / "x" / "000")
    assert [path.name for path in run_folders(tmp_path / "all")] == ["one"]


def test_two_swept_settings_are_small_multiples_and_a_table_with_a_row_per_run(tmp_path):
    for job, (gamma, topk) in enumerate([(2, 1), (4, 1), (8, 1), (2, 3), (4, 3), (8, 3)]):
        config = {"decoder": {"fast": {"gamma": gamma, "topk": topk}}}
        write(tmp_path / f"g/{job:03d}", identity=str(job), config=config)
    runs = summarised([load(path) for path in run_folders(tmp_path / "g")])
    part = sections(runs)[0]
    assert [run.label for run in runs][::3] == ["gamma=2, topk=1", "gamma=2, topk=3"]
    assert part.title == "Sweep of gamma = 2, 4, 8; topk = 1, 3 (g)"
    assert list(part.tables[0].frame.columns[:3]) == ["gamma", "topk", "prompts"]
    (picture,) = part.pictures
    panels = picture.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["topk = 1", "topk = 3"]
    for axes in panels:
        greedy = next(line for line in axes.lines if line.get_label() == "greedy")
        (fast,) = (own for own in axes.containers if own.get_label() == "fast")
        assert greedy.get_ydata() == [1, 1] and fast[0].get_xdata().tolist() == [2, 4, 8]
    assert "Horizontal: the mean of a decoder without gamma" in picture.caption


def test_a_sweep_of_batch_sizes_is_drawn_for_each_other_setting(tmp_path):
    for job, (size, refill) in enumerate([(1, False), (4, False), (1, True), (4, True)]):
        config = {"batch_size": size, "refill": refill}
        rows = [replace(one, batch_size=size, ended_s=one.wall_s * size) for one in GREEDY + FAST]
        write_run(tmp_path / f"b/{job:03d}", {**RUN, "identity": str(job), "config": config}, rows)
    runs = summarised([load(path) for path in run_folders(tmp_path / "b")])
    assert "batch size 1 · " in runs[2].facts.title
    assert "batch size 4, refilled · " in runs[3].facts.title
    headings = [*run_table(runs[3], "default").frame]
    assert "tokens/s/user" in headings and len(headings) <= 7 and "TTFT (ms)" not in headings
    for part in sections(runs)[0], sections([replace(run, sweep=None) for run in runs])[0]:
        drawn = [picture for picture in part.pictures if "batches" in picture.name]
        assert [picture.name[-12:] for picture in drawn] == ["refill-False", "-refill-True"]
        left, right = drawn[1].figure.axes
        speed = runs[2].frame.output_throughput["greedy"]
        assert right.lines[0].get_xydata().tolist() == [[speed, speed], [speed / 4, speed]]
        assert [t.get_text() for t in left.get_xticklabels()] == ["1", "4"]
    rows = [sample(one.example, one.decoder, [], error="OSError: x", ttft_s=None) for one in GREEDY]
    write_run(tmp_path / "c", {**RUN, "config": {"batch_size": 2}}, rows)
    right = batch_lines([*runs[:2], *summarised([load(tmp_path / "c")])]).axes[1]
    assert [t.get_text() for t in right.texts] == ["1", "4"], "2: every sample failed"


def test_folders_of_the_same_name_in_any_script_are_all_reported(tmp_path, unplotted):
    for place in ("größe", "grüße"):
        write(tmp_path / place / "run")
        sweep(tmp_path / place / "sweep", values=(0.5, 0.8))
    assert report(tmp_path) == 0
    found = tmp_path / "report"
    labels = ("run", "sweep: gamma=0.5", "sweep: gamma=0.8")
    places = ("größe", "grüße")
    wanted = {f"{place}/{name}" for place in places for name in labels}
    assert set(json.loads((found / "summary.json").read_text())) == wanted
    names = {path.name for path in (found / "tables").iterdir()}
    for name in ("sweep-calls_per_token.csv", "run-counts.csv", "sweep-gamma-0.5-default.tex"):
        assert {f"{place}-{name}" for place in places} <= names


def test_a_report_on_a_sweep_a_run_and_two_unreadable_folders(tmp_path, unplotted, capsys):
    sweep(tmp_path / "gammas")
    write(tmp_path / "main", identity="m", model={**RUN["model"], "target": "reference/target"})
    write_run(tmp_path / "empty", RUN, [])
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    folders = [tmp_path / name for name in ("empty", "gammas", "torn", "main")]
    out = tmp_path / "out"
    assert report(*folders, f"out={tmp_path / 'elsewhere'}") == 2
    assert not list(tmp_path.glob("main/summary*")) and not list(tmp_path.glob("main/*.png"))
    unplotted.undo()
    capsys.readouterr()
    assert report(*folders, f"out={out}", "remake=true", "wide=true") == 2
    told = capsys.readouterr()
    errors = [line for line in told.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "no samples.jsonl" in errors[0] and "damaged" in errors[1]
    assert "summary.json" in told.err and "Time and memory" in told.out
    last = json.loads(told.out.splitlines()[-1])
    names = ["gammas: gamma=2", "gammas: gamma=4", "gammas: gamma=8", "main"]
    assert list(last) == list(json.loads((out / "summary.json").read_text())) == names
    for name in ("main", "gammas/001"):
        assert (tmp_path / name / "speedup.svg").stat().st_size > 5000
    text = (out / "report.md").read_text()
    assert "Sweep of gamma = 2, 4, 8 (gammas)" in text
    for link in re.findall(r"\]\((plots/.+?)\)", text):
        assert (out / link).stat().st_size > 5000 and (out / link).with_suffix(".svg").exists()
    table = (out / "tables/gammas-latency_speedup.csv").read_text()
    assert table.startswith("gamma,prompts,greedy")
    latex = (out / "tables/main-default.tex").read_text()
    assert r"\toprule" in latex and r"\label{tab:main-default}" in latex
    rows = list(csv.DictReader((out / "numbers.csv").open()))
    assert len(rows) == 4 * 3 and rows[0]["run"] == names[0]
    assert float(rows[1]["latency_speedup.prompts"]) == 2 and not rows[1]["latency_speedup.low"]


def test_costs_of_a_name_count_every_run(tmp_path, unplotted, capsys):
    write(tmp_path / "main", timing=False)
    assert report(tmp_path / "main", "costs=flat") == 0
    told = capsys.readouterr().out
    assert "predicted with the costs 'flat'" in told and "predicted speedup" in told
    assert report(tmp_path / "nothing") == 2
