"""Tables of one run and of several: columns, cells, formats."""

import io
import re
from dataclasses import replace

import pandas as pd
import pytest
from measured import FAST, GREEDY, TOY, measured, three_decoders
from rich.console import Console

from ouroboros.audit.report import Row, audit_markdown
from ouroboros.bench.metrics import METRICS
from ouroboros.bench.report.summary import summarise
from ouroboros.bench.report.tables import (
    Table,
    cell,
    comparisons,
    legend,
    run_table,
    run_tables,
    terminal_tables,
    write_latex,
)


def test_a_cell_has_unit_interval_and_digits():
    one = summarise(three_decoders())
    row = one.frame.loc["other"]
    assert cell(METRICS["latency_vs_ouroboros"], row) == "2.00x [1.50, 3.00]"
    assert cell(METRICS["ttft_ms"], row) == "1500"
    assert cell(METRICS["repetition_rate"], row) == "0 %"
    assert cell(METRICS["cost_per_token"], row) == "-"
    assert cell(METRICS["latency_speedup"], one.frame.loc["greedy"]) == "1.00x"
    frame = one.frame.assign(verdict=["reference", "identical", "1 tie of 2", None])
    table = run_table(replace(one, frame=frame), "default").frame
    assert list(table)[:4] == ["decoder", "tokens/s", "speedup", "Ouroboros' lead"]
    assert list(table)[4:] == ["TTFT (ms)", "accepted/step", "verdict"]
    assert list(table["decoder"]) == ["greedy", "ouroboros", "other", "hf_greedy"]
    assert list(table["verdict"]) == ["reference", "identical", "1 tie of 2", "-"]


def test_a_run_without_times_shows_predictions_or_calls_instead():
    predicted = run_table(summarise(three_decoders(TOY, timing=False)), "default").frame
    assert "predicted speedup" in predicted and "Ouroboros' predicted lead" in predicted
    assert "tokens/s" not in predicted and "Ouroboros' calls lead" not in predicted
    counted = run_table(summarise(three_decoders(timing=False)), "default").frame
    assert list(counted)[1:] == ["Ouroboros' calls lead", "accepted/step", "calls/token"]


@pytest.mark.parametrize(("width", "left_out"), [(140, 0), (100, 0), (92, 1), (80, 2)])
def test_the_terminal_shows_what_fits_and_truncates_nothing(width, left_out):
    names = {"greedy": "greedy", "fast": "hf_assisted_constant"}
    rows = [replace(s, decoder=names[s.decoder]) for s in (*GREEDY, *FAST)]
    scores = {row.key: {"passed": 1.0} for row in rows}
    one = summarise(measured(rows, decoders=list(names.values()), scores=scores))
    one = replace(one, frame=one.frame.assign(verdict=["reference", "2 not judged (!)"]))
    console = Console(width=width, record=True, file=io.StringIO())
    (shown,) = terminal_tables(one, width)
    console.print(shown)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    table = run_table(one, "default").frame
    lost = [name for name in table if name not in text]
    assert lost == ["TTFT (ms)", "accepted/step"][2 - left_out :]
    for value in table.drop(columns=lost).to_numpy().ravel():
        assert all(part in text for part in re.split(r" \[| \(n", value))


def test_every_table_of_a_run_and_its_legend():
    one = summarise(three_decoders(TOY))
    found = {table.name: table.frame for table in run_tables(one)}
    assert list(found) == ["default", "speed", "lead", "time", "counts"]
    lead = found["lead"].set_index("decoder")
    assert list(lead.index) == ["greedy", "other", "hf_greedy"]
    assert lead.loc["other", "Ouroboros is"] == "under 8 prompts"
    assert lead.loc["other", "Ouroboros' lead"] == "2.00x [1.50, 3.00]"
    assert "calls/token" in found["counts"] and "J/token" not in found["time"]
    shown = {heading for frame in found.values() for heading in frame.columns}
    assert shown - set(legend([one])) == {"decoder", "Ouroboros is"}


def test_published_numbers_stand_beside_the_measured_ones():
    published = {"source": "arXiv 2402.13720", "hardware": "A100"}
    published["tokens_per_s"] = {"greedy": 15.6, "fast": 62.4, "absent": 31.2}
    summary = summarise(measured(published=published))
    _, caption, frame, _ = run_tables(summary)[-1]
    rows = frame.set_index("decoder")
    assert rows.loc["fast", "published speedup"] == "4.00x"
    assert rows.loc["fast", "measured speedup"].startswith("2.50x")
    assert rows.loc["fast", "speedup / published"] == "0.62"
    assert rows.loc["absent", "measured speedup"] == rows.loc["hf_greedy", "published speedup"]
    assert "(arXiv 2402.13720, on A100) and measured (a stand-in) on Toy CPU" in caption


def test_runs_are_compared_decoders_across():
    runs = [summarise(measured()), summarise(measured(parts=2))]
    found = {name: rest for name, *rest in comparisons({"gamma": [2, 4]}, runs)}
    speedups = ["latency_speedup", "latency_speedup_macro", "worst_speedup"]
    assert list(found) == ["output_throughput", *speedups, "calls_per_token"]
    caption, frame, _ = found["latency_speedup"]
    assert caption.startswith("speedup: Greedy's seconds per token")
    assert list(frame) == ["gamma", "prompts", "greedy", "fast", "hf_greedy"]
    assert list(frame["fast"]) == ["2.50x (n = 2)"] * 2
    assert list(frame["prompts"]) == ["2 (incomplete)"] * 2
    untimed = comparisons({"run": ["x"]}, [summarise(measured(timing=False))])
    assert [name for name, *_ in untimed] == ["calls_per_token"]


def test_latex_is_escaped_and_the_best_value_of_a_column_bold(tmp_path):
    cells = {"100 % & more": ["a_b", "c", "d"], "up": ["2.50x [1.00, 3.00]", "10.0x", "-"]}
    frame = pd.DataFrame(cells | {"down": ["2 %", "2 %", "3 %"], "same": ["1.0"] * 3})
    better = {"up": "higher", "down": "lower", "same": "higher"}
    table = Table("main", "50 % of a_b: " + "long " * 90, frame, better)
    write_latex(table, tmp_path / "main.tex", about="x " * 200)
    text = (tmp_path / "main.tex").read_text()
    assert r"\label{tab:main}" in text and r"\toprule" in text
    assert not re.search(r"(?<!\\)[%_]", text)
    assert r"100 \% \& more" in text and r"a\_b & 2.50x [1.00, 3.00] & \textbf{2 \%} & 1.0" in text
    assert re.findall(r"textbf\{(.*?)\}", text) == [r"2 \%", "10.0x", r"2 \%"]
    (caption,) = re.findall(r"\\caption\{(.*)\}", text)
    assert caption.startswith(r"50 \% of a\_b. x x") and len(caption) <= 205


def test_wide_tables_become_several_of_seven_columns_with_labels_of_their_own(tmp_path):
    for table in run_tables(summarise(three_decoders(TOY))):
        write_latex(table, tmp_path / f"{table.name}.tex", about="toy")
    texts = [path.read_text() for path in tmp_path.iterdir()]
    rows = [line for text in texts for line in text.splitlines() if " & " in line]
    assert max(line.count(" & ") for line in rows) <= 6
    labels = [label for text in texts for label in re.findall(r"label\{(.*?)\}", text)]
    assert {"tab:speed", "tab:speed-2"} <= {*labels} and len(labels) == len({*labels})
    assert all("decoder" in line for line in rows if "speedup" in line)


def test_a_bar_in_an_id_starts_no_cell():
    row = Row("p|0", 0, {"a": {"verdict": "BUG", "reason": "x|y"}})
    text = audit_markdown("title", [row], pd.DataFrame({"decoder": ["a"]}))
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()} == {0, 2, 10}
