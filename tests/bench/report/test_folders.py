"""Reports over several folders: sweeps, unreadable folders."""

import csv
import json
import random
import re
from dataclasses import replace
from functools import reduce
from operator import getitem

import pytest
from measured import FAST, GREEDY, RUN, sample, write_run
from tiny import mostly_slow

from ouroboros.bench.report import style
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.bench.report.plots import batch_lines
from ouroboros.bench.report.report import labels, sections, summarised, swept
from ouroboros.bench.report.tables import run_table
from ouroboros.cli.main import main
from ouroboros.cli.report import gather


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


def test_what_a_sweep_varied():
    configs = [{"a": {"b": {"c": c}, "d": d}} for c, d in ((1, "x"), (2, "x"))]
    (setting,) = swept(configs)
    assert (setting.name, setting.values, setting.members) == ("c", [1, 2], ["a.b.c"])
    assert swept([{}, {"a": None}]) == [] and swept([]) == []
    apart = swept([{"a": {"c": n}, "b": {"c": n % 2}} for n in range(4)])
    assert [one.name for one in apart] == ["a.c", "b.c"]
    runs = [{**RUN, "config": config} for config in configs]
    assert labels(runs, ["0", "1"], most=3) == ["c=1", "c=2"]
    assert labels(runs, ["0", "1"], most=0) == ["0", "1"]
    assert labels([runs[0]] * 2, ["0", "1"], most=3) == ["0", "1"]


def test_settings_that_change_together_are_one():
    configs = [
        {"decoder": {"a": {"gamma": g, "w": w}, "b": {"gamma": g, "v": w}}}
        for g, w in ((2, 1), (4, 1), (2, 3), (4, 3))
    ]
    gamma, width = swept(configs)
    assert gamma.name == "gamma" and list(gamma.values) == [2, 4, 2, 4]
    assert width.name == "w and v" and width.members == ["decoder.a.w", "decoder.b.v"]
    assert list(width.values) == [1, 1, 3, 3]
    (both,) = swept([{"repeats": 2, "batch_size": 1}, {"repeats": 1, "batch_size": 2}])
    assert (both.name, both.values) == ("repeats and batch_size", ["2 and 1", "1 and 2"])


def test_a_sweep_that_was_not_timed_shows_counts(tmp_path):
    folder = sweep(tmp_path / "s", timing=False)
    runs = summarised([load(path) for path in run_folders(folder)])
    part = sections(runs)[0]
    assert [table.name for table in part.tables] == ["s-calls_per_token"]
    assert len(part.pictures) == 1 and len(part.pictures[0].figure.axes) == 1
    for summary in runs:
        assert summary.frame["latency_speedup"].isna().all()
        assert any("Counts only" in note for note in summary.notes)


def test_a_run_and_the_sweep_below_it_are_both_reported(tmp_path):
    write(tmp_path / "x")
    jobs = run_folders(sweep(tmp_path / "x", values=(2, 4)))
    assert [path.name for path in jobs] == ["x", "000", "001"]


def test_runs_behind_symbolic_links_are_reported(tmp_path):
    write(tmp_path / "x")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "one").symlink_to(tmp_path / "x")
    assert [path.name for path in run_folders(tmp_path / "all")] == ["one"]


def test_the_terminal_says_what_is_missing(tmp_path, capsys):
    bad = replace(FAST[0], error="ValueError: x", new_tokens=(), steps=())
    write_run(tmp_path / "x", {**RUN, "samples_wanted": 4}, [*GREEDY, bad])
    assert report(tmp_path / "x") == 0
    err = capsys.readouterr().err
    assert "Incomplete: 3 of 4 samples." in err and "fast: 1 failed: ValueError: x" in err


def test_two_swept_settings_make_a_table_with_a_row_per_run(tmp_path):
    for job, (gamma, topk) in enumerate([(2, 1), (2, 3), (4, 1), (4, 3)]):
        config = {"decoder": {"fast": {"gamma": gamma, "topk": topk}}}
        write(tmp_path / f"g/{job:03d}", identity=str(job), config=config)
    runs = summarised([load(path) for path in run_folders(tmp_path / "g")])
    part = sections(runs)[0]
    names = ["gamma=2, topk=1", "gamma=2, topk=3", "gamma=4, topk=1", "gamma=4, topk=3"]
    assert [run.label for run in runs] == names
    assert not part.pictures
    assert part.title == "Sweep of gamma = 2, 4; topk = 1, 3 (g)"
    assert list(part.tables[0].frame.columns[:3]) == ["gamma", "topk", "prompts"]


def test_a_sweep_of_batch_sizes_is_drawn_for_each_other_setting(tmp_path):
    for job, (size, refill) in enumerate([(1, False), (4, False), (1, True), (4, True)]):
        config = {"batch_size": size, "refill": refill}
        rows = [replace(one, batch_size=size, ended_s=one.wall_s * size) for one in GREEDY + FAST]
        write_run(tmp_path / f"b/{job:03d}", {**RUN, "identity": str(job), "config": config}, rows)
    runs = summarised([load(path) for path in run_folders(tmp_path / "b")])
    assert "batch size 1 · " in runs[2].facts.title
    assert "batch size 4, refilled · " in runs[3].facts.title
    headings = [*run_table(runs[3], "default")]
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


@pytest.mark.slow
def test_folders_of_the_same_name_are_all_reported(tmp_path, unplotted):
    for place in ("old", "new"):
        write(tmp_path / place / "run")
        sweep(tmp_path / place / "sweep", values=(2, 4))
    assert report(tmp_path) == 0
    found = tmp_path / "report"
    assert set(json.loads((found / "summary.json").read_text())) == {
        f"{place}/{name}"
        for place in ("old", "new")
        for name in ("run", "sweep: gamma=2", "sweep: gamma=4")
    }
    for place in ("old", "new"):
        assert (found / f"tables/{place}-sweep-calls_per_token.csv").exists()
        assert (found / f"tables/{place}-run-counts.csv").exists()


def test_runs_of_a_swept_fraction_have_their_own_tables(tmp_path, unplotted):
    sweep(tmp_path / "sweep", values=(0.5, 0.8))
    assert report(tmp_path / "sweep") == 0
    names = {path.name for path in (tmp_path / "sweep/report/tables").iterdir()}
    wanted = {f"gamma-{g}-{t}" for g in (0.5, 0.8) for t in ("default", "counts")}
    assert {f"{one}.{kind}" for one in wanted for kind in ("csv", "tex")} <= names


def test_batch_sizes_without_times_are_compared_by_counts(tmp_path):
    for size in (1, 2):
        write(tmp_path / f"b/{size}", config={"batch_size": size}, timing=False)
    runs = summarised([load(path) for path in run_folders(tmp_path / "b")])
    (picture,) = sections(runs)[0].pictures
    assert picture.name == "b" and len(picture.figure.axes) == 1


def test_runs_named_in_any_script_have_their_own_tables(tmp_path, unplotted):
    for name in ("größe", "grüße"):
        write(tmp_path / name)
    assert report(tmp_path) == 0
    names = {path.name for path in (tmp_path / "report/tables").iterdir()}
    assert {"größe-default.csv", "grüße-default.csv"} <= names


def test_runs_whose_files_would_have_the_same_name_are_refused(tmp_path, unplotted, capsys):
    """The tables of the one replaced those of the other."""
    for name in ("run 1", "run-1"):
        write(tmp_path / name)
    assert report(tmp_path / "run 1", tmp_path / "run-1", f"out={tmp_path / 'out'}") == 2
    error = capsys.readouterr().err
    assert "would both write tables/run-1-default.csv: rename a folder" in error
    assert not (tmp_path / "out").exists()


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
    names = ["gammas: gamma=2", "gammas: gamma=4", "gammas: gamma=8", "toy"]
    assert list(last) == list(json.loads((out / "summary.json").read_text())) == names
    for name in ("main", "gammas/001"):
        assert (tmp_path / name / "speedup.png").stat().st_size > 5000
    text = (out / "report.md").read_text()
    assert "Sweep of gamma = 2, 4, 8 (gammas)" in text
    for link in re.findall(r"\]\((plots/.+?)\)", text):
        assert (out / link).stat().st_size > 5000 and (out / link).with_suffix(".svg").exists()
    table = (out / "tables/gammas-latency_speedup.csv").read_text()
    assert table.startswith("gamma,prompts,greedy")
    latex = (out / "tables/toy-default.tex").read_text()
    assert r"\toprule" in latex and r"\label{tab:toy-default}" in latex
    rows = list(csv.DictReader((out / "numbers.csv").open()))
    assert len(rows) == 4 * 3 and rows[0]["run"] == names[0]
    assert float(rows[1]["latency_speedup.prompts"]) == 2 and not rows[1]["latency_speedup.low"]


def test_a_report_replaces_the_tables_and_plots_of_the_earlier_one(tmp_path, unplotted):
    out, run = tmp_path / "out", tmp_path / "main"
    write(run)
    assert report(sweep(tmp_path / "gammas", values=(2, 4)), run, f"out={out}") == 0
    own = [out / "tables/gammas-mine.csv", out / "plots/toy-speedup.pdf"]
    for path in own:
        path.write_text("mine")
    assert report(run, f"out={out}") == 0
    left = {p for name in ("tables", "plots") for p in (out / name).iterdir()}
    assert report(run, f"out={tmp_path / 'new'}") == 0
    new = {p for name in ("tables", "plots") for p in (tmp_path / "new" / name).iterdir()}
    assert left == {out / path.relative_to(tmp_path / "new") for path in new} | set(own)


def test_the_command_prints_one_table_and_the_same_numbers_as_json(tmp_path, unplotted, capsys):
    write(tmp_path / "main")
    assert report(tmp_path / "main", "--json") == 0
    told = capsys.readouterr().out
    assert told.startswith("toy, 2 prompts x up to 6 tokens · ") and "E2E (s)" not in told
    assert "2.50x" in told
    assert json.loads(told.splitlines()[-1])["toy"]["fast"]["latency_speedup"] == 2.5


def test_costs_of_a_name_count_every_run(tmp_path, unplotted, capsys):
    write(tmp_path / "main", timing=False)
    assert report(tmp_path / "main", "costs=flat") == 0
    told = capsys.readouterr().out
    assert "predicted with the costs 'flat'" in told and "predicted speedup" in told
    assert report(tmp_path / "nothing") == 2


def mutations(run, samples, count):
    """Yield `count` ways in which one file of a run is damaged: (file, its text)."""
    draw = random.Random(0)

    def paths(value, path=()):
        yield path
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                yield from paths(item, (*path, key))

    wrong = (None, "x", -1, 3.5, [], {}, [None], {"a": 1}, True)
    lines = [sample.to_dict() for sample in samples]
    for number in range(count):
        name, whole = ("run.json", run) if number % 2 else ("samples.jsonl", lines)
        whole = json.loads(json.dumps(whole))
        *above, last = draw.choice([path for path in paths(whole) if path])
        place = reduce(getitem, above, whole)
        if draw.random() < 0.4:
            del place[last]
        else:
            place[last] = draw.choice(wrong)
        rows = [whole] if name == "run.json" else whole
        text = "".join(json.dumps(row) + "\n" for row in rows)
        yield name, text if draw.random() < 0.9 else text[: draw.randrange(len(text))] + "\n"


@pytest.mark.parametrize("count", mostly_slow([120, 16], quick=[16]))
def test_damaged_folders_are_named_and_the_others_reported(tmp_path, count):
    write(tmp_path / "good", identity="good")
    run = json.loads((tmp_path / "good" / "run.json").read_text())
    for number, (name, text) in enumerate(mutations(run, [*GREEDY, *FAST], count)):
        write_run(tmp_path / f"bad{number}", RUN, [*GREEDY, *FAST])
        (tmp_path / f"bad{number}" / name).write_text(text)
    for name in ("scores.jsonl", "audit.jsonl", "trees.jsonl", "costs.json"):
        write(tmp_path / f"torn_{name}")
        (tmp_path / f"torn_{name}" / name).write_text('{"key": ["a"], "steps": [1], "target": 3}\n')
    failures: list[str] = []
    loaded = gather([tmp_path], lambda error: failures.append(str(error)))
    names = {one.folder.name for one in loaded}
    assert "good" in names and len(loaded) + len(failures) == count + 5
    assert not any(name.startswith("torn") for name in names)
    assert all("\n" not in line and str(tmp_path) in line for line in failures)
    assert len(failures) > count // 2
    broken: list[str] = []
    runs = summarised(loaded, broken.append)
    assert "good" in " ".join(run.label for run in runs) and len(broken) + len(runs) == len(loaded)
    assert all("\n" not in line and "bad" in line for line in broken)
