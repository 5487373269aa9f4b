"""Reports over several folders: sweeps, merged parts, bad folders, the page, LaTeX, the export."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from measured import RUN, greedy_and_fast, sample, step, write_run

from ouroboros.bench.report.cells import as_latex
from ouroboros.bench.report.compare import CELLS, comparison_frame, numbers_frame
from ouroboros.bench.report.folder_report import notes
from ouroboros.bench.report.gather import load, merge, run_folders
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.run_set import run_set
from ouroboros.bench.report.sections import sections
from ouroboros.bench.report.spec_bench import answers
from ouroboros.bench.report.sweep import labels, short, swept, varied
from ouroboros.bench.report.tables import speed_frame
from ouroboros.bench.report.token_text import splitter
from ouroboros.bench.report.viewer import viewer_run
from ouroboros.bench.run.pair import PACKAGE
from ouroboros.cli import command_line

PAIR = {**RUN["model"], "target": "reference/target"}


def measured(path, *, run=RUN, **facts):
    """Write and load a run of both decoders on two prompts."""
    write_run(path, {**run, **facts}, [row for pair in greedy_and_fast() for row in pair])
    return load(path)


def call(*arguments):
    return command_line.main(["report", *map(str, arguments)])


def sweep(path, values=(2, 4, 8), **facts):
    for job, gamma in enumerate(values):
        config = {"max_new": None, "decoder": {"fast": {"gamma": gamma, "draft": "x"}}}
        measured(path / f"{job:03d}", identity=str(gamma), config=config, **facts)
    return path


def test_a_folder_of_runs_is_found(tmp_path):
    sweep(tmp_path / "s")
    assert [p.name for p in run_folders(tmp_path / "s")] == ["000", "001", "002"]
    assert run_folders(tmp_path / "s" / "001") == [tmp_path / "s" / "001"]
    with pytest.raises(ValueError, match="not a results folder"):
        run_folders(tmp_path / "nothing")


def test_parts_of_one_run_are_joined(tmp_path):
    greedy, fast = greedy_and_fast()
    machine = {"cpu": "Other CPU", "cores": 4, "threads": 4, "gpus": []}
    other = {**RUN["provenance"], "machine": machine}
    facts = {"samples_wanted": 6}
    write_run(tmp_path / "a", {**RUN, **facts}, [greedy[0], fast[0]])
    write_run(tmp_path / "b", {**RUN, **facts, "provenance": other}, [greedy[1], fast[1]])
    write_run(tmp_path / "c", {**RUN, **facts}, [greedy[0], fast[0]])
    whole, again = merge(load(tmp_path / name) for name in "abc")
    assert len(whole.samples) == 4 and [p.name for p in again.folders] == ["c"]
    (first, _) = run_set([whole, again]).summaries
    assert first["decoders"]["fast"]["latency_speedup"]["value"] == pytest.approx(2.5)
    assert "toy, 2 prompts" in first["title"] and first["incomplete"]
    assert "Toy CPU, 2 cores + Other CPU, 4 cores" in first["title"]
    assert "2 parts, merged" in first["footnote"]


def test_parts_that_state_their_own_size_add_up(tmp_path):
    greedy, fast = greedy_and_fast()
    own = {
        "decoders": ["greedy", "fast"],
        "samples_wanted": 2,
        "task": {**RUN["task"], "prompts": 1},
    }
    write_run(tmp_path / "a", {**RUN, **own}, [greedy[0], fast[0]])
    write_run(tmp_path / "b", {**RUN, **own}, [greedy[1], fast[1]])
    (whole,) = merge([load(tmp_path / "a"), load(tmp_path / "b")])
    assert whole.run["samples_wanted"] == 4 and whole.run["task"]["prompts"] == 2


def test_runs_of_other_settings_stay_apart(tmp_path):
    found = [measured(tmp_path / name, identity=name) for name in "ab"]
    assert merge(found) == found


def test_what_a_sweep_varied():
    configs = [{"a": {"b": {"c": c}, "d": d}} for c, d in ((1, "x"), (2, "x"))]
    assert varied(configs) == {"a.b.c": [1, 2]}
    assert varied([{}, {"a": None}]) == {} and varied([]) == {}
    assert short(["a.c", "b.c"]) == {"a.c": "a.c", "b.c": "b.c"}
    runs = [{**RUN, "config": config} for config in configs]
    assert labels(runs, ["0", "1"], few=3) == ["c=1", "c=2"]
    assert labels(runs, ["0", "1"], few=0) == ["0", "1"]
    assert labels([runs[0]] * 2, ["0", "1"], few=3) == ["0", "1"]


def test_settings_that_follow_one_another_are_one():
    configs = [
        {"decoder": {"a": {"gamma": g, "w": w}, "b": {"gamma": g, "v": w}}}
        for g, w in ((2, 1), (4, 1), (2, 3), (4, 3))
    ]
    gamma, width = swept(configs)
    assert gamma.name == "gamma" and list(gamma.values) == [2, 4, 2, 4]
    assert width.name == "w and v" and width.members == ["decoder.a.w", "decoder.b.v"]


def test_a_sweep_that_was_not_timed_shows_counts(tmp_path):
    folder = sweep(tmp_path / "s", timing=False)
    found = run_set([load(path) for path in run_folders(folder)])
    part = sections(found)[0]
    assert [picture.name for picture in part.pictures] == ["sweep-s"]
    assert [table.name for table in part.tables] == ["sweep-s-calls"]
    assert len(part.pictures[0].figure.axes) == 1
    for summary in found.summaries:
        assert summary["decoders"]["fast"]["latency_speedup"] is None
        assert any("Counts only" in note for note in notes(summary))
        assert "tokens/s" not in speed_frame(summary) and "unequal" in speed_frame(summary)


def test_two_swept_settings_make_a_map(tmp_path):
    for job, (gamma, topk) in enumerate([(2, 1), (2, 3), (4, 1), (4, 3)]):
        config = {"decoder": {"fast": {"gamma": gamma, "topk": topk}}}
        measured(tmp_path / f"g/{job:03d}", identity=str(job), config=config)
    found = run_set([load(path) for path in run_folders(tmp_path / "g")])
    part = sections(found)[0]
    assert list(found.labels) == [
        *("gamma=2, topk=1", "gamma=2, topk=3", "gamma=4, topk=1", "gamma=4, topk=3"),
    ]
    assert [picture.name for picture in part.pictures] == ["sweep-g-fast"]
    assert part.title.startswith("Sweep g: decoder.fast.gamma = 2, 4; decoder.fast.topk = 1, 3")
    assert list(part.tables[0].frame.columns[:3]) == ["gamma", "topk", "prompts"]
    speedup, calls = part.pictures[0].figure.axes
    assert speedup.get_title(loc="left").endswith("best: 2.50x [2.00x, 3.00x]")
    (low, high), (best,) = speedup.images[0].get_clim(), speedup.patches
    assert (low, high) == pytest.approx((2.0, 3.0)) and best.get_xy() == (-0.5, -0.5)
    assert calls.get_title(loc="left").startswith("fast: calls per token")


@pytest.mark.slow
def test_a_report_on_a_sweep_a_run_and_two_bad_folders(tmp_path, capsys):
    sweep(tmp_path / "gammas")
    measured(tmp_path / "main", identity="m", model=PAIR)
    write_run(tmp_path / "empty", RUN, [])
    (tmp_path / "empty" / "samples.jsonl").unlink()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    folders = [tmp_path / name for name in ("empty", "gammas", "torn", "main")]
    out = tmp_path / "out"
    assert call(*folders, "--out", tmp_path / "elsewhere") == 2
    assert not list(tmp_path.glob("main/summary*")) and not list(tmp_path.glob("main/*.png"))
    capsys.readouterr()
    assert call(*folders, "--out", out, "--spec-bench", "--remake") == 2
    told = capsys.readouterr()
    warnings = [line for line in told.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 4 and "toy is a run of toy: its prompts are numbered" in warnings[3]
    errors = [line for line in told.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "no samples.jsonl" in errors[0] and "damaged" in errors[1]
    last = json.loads(told.out.splitlines()[-1])
    assert list(last) == ["gammas: gamma=2", "gammas: gamma=4", "gammas: gamma=8", "toy"]
    for name in ("main", "gammas/001"):
        assert (tmp_path / name / "speedup.png").stat().st_size > 5000
    text = (out / "report.md").read_text()
    assert "Sweep gammas: decoder.fast.gamma = 2, 4, 8" in text
    for link in re.findall(r"\]\((plots/.+?)\)", text):
        assert (out / link).stat().st_size > 5000 and (out / link).with_suffix(".svg").exists()
    assert "plots/sweep-gammas.png" in text and "plots/toy-sources.png" in text
    assert (out / "tables/sweep-gammas-speedup.csv").read_text().startswith("gamma,prompts,greedy")
    assert r"\toprule" in (out / "tables/toy-speed.tex").read_text()
    assert len((out / "numbers.csv").read_text().splitlines()) == 1 + 4 * 3
    narrow = (out / "tables/toy-narrow.tex").read_text()
    assert r"\label{tab:toy-narrow}" in narrow and r"\label{tab:toy-speed}" not in narrow
    assert r"\begin{tabular}{lrrr}" in narrow and not list(out.glob("tables/*narrow.md"))
    assert (out / "spec_bench/toy/reference-fast.jsonl").exists()


def test_a_title_says_how_long_prompts_were_made(tmp_path):
    run = measured(tmp_path / "long", config={"context_tokens": 2048})
    (summary,) = run_set([run]).summaries
    assert "toy, 2 prompts of 2048 tokens x " in summary["title"]


def test_a_page_holds_everything_and_asks_for_nothing(tmp_path):
    greedy, fast = greedy_and_fast()
    failed = sample("<b>", "fast", [], error="ValueError: </script>", wall_s=0.0, ttft_s=None)
    write_run(tmp_path / "main", {**RUN, "model": PAIR}, [*greedy, *fast, failed])
    assert call(tmp_path / "main") == 0
    page = (tmp_path / "main" / "report" / "report.html").read_text()
    assert not re.search(r"https?://|<link|<script src|@import|url\((?!#)", page)
    assert page.count("</script>") == 2 and page.count("<svg") == 5 + 1
    (embedded,) = re.findall(r'id="data">(.*?)</script>', page, flags=re.DOTALL)
    data = json.loads(embedded)
    prompts = data["runs"][0]["prompts"]
    assert [prompt["id"] for prompt in prompts] == ["a", "b", "<b>"]
    shown = prompts[0]["samples"]["fast"]
    assert len(shown["pieces"]) == len(shown["sources"]) == 4
    assert [step[0] for step in shown["steps"]] == [1, 3]
    names = {source["letter"]: source["name"] for source in data["sources"]}
    assert [names[letter] for letter in shown["sources"]] == ["target", "draft", "draft", "target"]
    assert "1 failed: ValueError: &lt;/script&gt;" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_viewer_takes_prompts_at_even_distances(tmp_path):
    rows = [sample(str(i), "greedy", [step(0, 0)] * 10) for i in range(11)]
    write_run(tmp_path, RUN, rows)
    shown = viewer_run(load(tmp_path), "x", most_tokens=35)
    assert [prompt["id"] for prompt in shown["prompts"]] == ["0", "5", "10"]
    assert shown["prompts_in_all"] == 11


def test_pieces_never_break_a_character():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(PACKAGE / "reference/target/tokenizer.json"))
    text = "def f():\n    return 'é🙂'"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    found = splitter("reference/target")(ids)
    assert "".join(found) == text and len(found) == len(ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(splitter("reference/target")(ids[:-2]))
    assert splitter("no/such-model")([5, 6]) == splitter(None)([5, 6]) == ["5 ", "6 "]


def test_latex_is_escaped(tmp_path):
    one = measured(tmp_path, decoders=["greedy", "fast", "x_y"])
    _, cell = CELLS["speedup"]
    frame = comparison_frame({"100 % & more": ["a_b"]}, run_set([one]).summaries, cell)
    text = as_latex(frame, "50 % of a_b \\ c", "main")
    assert r"\label{tab:main}" in text
    assert r"100 \% \& more" in text and r"a\_b" in text and r"x\_y" in text
    assert r"50 \% of a\_b \textbackslash{} c" in text
    assert not re.search(r"(?<!\\)[%_]", text)


def test_numbers_are_in_full(tmp_path):
    frame = numbers_frame({"run": ["r"]}, run_set([measured(tmp_path)]).summaries)
    row = frame[frame.decoder == "fast"].iloc[0]
    assert row["latency_speedup.value"] == pytest.approx(2.5) and row["run"] == "r"
    assert row["latency_speedup.low"] == pytest.approx(2.0)


def test_a_figure_is_the_same_bytes_each_time(tmp_path):
    from ouroboros.bench.report.plots.speedups import speedup_bars

    summary = run_set([measured(tmp_path)]).summaries[0]
    one, two = (style.inline_svg(speedup_bars(summary)) for _ in range(2))
    assert one == two and "var(--ink)" in one and "xmlns" not in one


def test_a_picture_without_intervals_has_no_whiskers(tmp_path):
    from ouroboros.bench.report.plots.speedups import speedup_bars

    summary = run_set([measured(tmp_path)]).summaries[0]
    words = [text.get_text() for text in speedup_bars(summary).texts]
    assert any("Whiskers" in line for line in words)
    known = [row for row in summary["decoders"].values() if row["latency_speedup"]]
    for row in known:
        row["latency_speedup"] = {**row["latency_speedup"], "low": None, "high": None}
    figure = speedup_bars(summary)
    assert not any("Whiskers" in text.get_text() for text in figure.texts)
    assert np.isnan(style.whiskers([row["latency_speedup"] for row in known])).all()
    assert figure.axes[0].get_xlim()[1] > 2.5


def test_a_title_breaks_between_its_parts_or_at_a_space_of_one_too_long():
    figure = style.new_figure(2)
    style.title(figure, f"{'one ' * 14}· {'two, ' * 14}· {'three, ' * 20}end")
    one, two, *rest = figure.get_suptitle().replace(style.HARD_SPACE, " ").split("\n")
    assert one.rstrip(" ·") == ("one " * 14).strip() and two.startswith("two, ")
    assert all(len(line) <= style.TITLE_WIDTH for line in (one, two, *rest))
    assert " ".join((two, *rest)).split(" · ")[1].split() == [*(["three,"] * 20), "end"]


def test_pictures_of_several_runs_speak_of_whiskers_only_where_some_are_drawn(tmp_path):
    from ouroboros.bench.report.plots.speedups import comparison_dots
    from ouroboros.bench.report.plots.sweeps import sweep_curves

    summaries = [run_set([measured(tmp_path / str(n))]).summaries[0] for n in range(2)]

    def footnotes():
        dots = comparison_dots(dict(zip("ab", summaries, strict=True)))
        figures = dots, sweep_curves("x", [1, 2], summaries)
        return ["Whiskers" in figure.get_supxlabel() for figure in figures]

    assert footnotes() == [True, True]
    for summary in summaries:
        for row in summary["decoders"].values():
            for name in ("latency_speedup", "calls_interval"):
                row[name] = row[name] and {**row[name], "low": None, "high": None}
    assert footnotes() == [False, False]


def test_answers_have_turns_and_leave_out_what_failed():
    def turn(example, text, **kind):
        return replace(sample(example, "greedy", [step(0, 0), step(3, 2)], **kind), text=text)

    rows = [
        turn("81/1", "one"),
        turn("81/2", "two"),
        turn("82/1", "x"),
        turn("82/2", "", error="e"),
    ]
    (found,) = answers(RUN, rows, "greedy")
    assert found["question_id"] == 81 and found["category"] == "toy"
    (choice,) = found["choices"]
    assert choice["turns"] == ["one", "two"] and choice["index"] == 0
    assert choice["new_tokens"] == [4, 4] and choice["decoding_steps"] == [2, 2]
    assert choice["wall_time"] == [10.0, 10.0] and choice["accept_lengths"] == [1, 3, 1, 3]
    assert set(found) == {
        *("question_id", "category", "answer_id", "model_id", "choices", "tstamp"),
    }
    plain = answers(RUN, [turn("HumanEval/0", "x"), turn("HumanEval/9", "y", repeat=0)], "greedy")
    assert [one["question_id"] for one in plain] == [1, 2]
