"""Trees in tables, plots and the page's viewer."""

from dataclasses import replace

import pytest
from measured import RUN, measured_trees

from ouroboros.bench.report.folder_report import to_markdown
from ouroboros.bench.report.gather import summary_of
from ouroboros.bench.report.plots.trees import reliability, tree_shapes
from ouroboros.bench.report.run_set import run_set
from ouroboros.bench.report.sections import sections
from ouroboros.bench.report.tables import source_frame, tree_frame
from ouroboros.bench.report.viewer import LETTERS, viewer_run

PAIR = {**RUN["model"], "target": "reference/target"}


@pytest.fixture
def one(tmp_path):
    return measured_trees(tmp_path, PAIR)


def test_tables_and_words(one):
    summary = summary_of(one)
    row = tree_frame(summary).set_index("decoder").loc["fast"]
    assert row["samples with trees"] == "1 of 2" and row["nodes"] == "2.0"
    assert row["estimated"] == "45 %" and row["accepted"] == "25 %"
    frame = source_frame(summary).set_index("source")
    assert frame.loc["phrase", "of these accepted"] == "100 %"
    assert "Proposed trees" in to_markdown(summary)
    bare = replace(one, trees={})
    assert tree_frame(summary_of(bare)).empty and "Proposed trees" not in to_markdown(
        summary_of(bare)
    )


def test_plots(one):
    summary = summary_of(one)
    figure = reliability(summary)
    assert figure.axes[0].get_title(loc="left") == "fast"
    assert any("log loss" in text.get_text() for text in figure.axes[1].texts)
    assert len(tree_shapes(summary).axes) == 2
    names = {picture.name for part in sections(run_set([one])) for picture in part.pictures}
    assert {"trees", "reliability"} <= names
    silent = {key: [replace(t, probability=()) for t in own] for key, own in one.trees.items()}
    summary = summary_of(replace(one, trees=silent))
    assert reliability(summary) is None and tree_shapes(summary) is not None
    assert tree_shapes(summary_of(replace(one, trees={}))) is None


def test_the_viewer_has_the_texts_and_the_path(one):
    shown = viewer_run(one, "x", most_tokens=100)
    sample = shown["prompts"][0]["samples"]["fast"]
    first, second = sample["trees"]
    assert first["parent"] == [-1] and second["parent"] == [-1, 0, 0, 1, 1]
    assert second["percent"] == [100, 60, 30, 80, 10] and second["path"] == [0, 1]
    assert second["source"][1] == LETTERS["phrase"] and second["source"][2] == LETTERS["draft"]
    assert all(shown["texts"][place] for place in (*second["text"], second["then"]))
    assert "trees" not in shown["prompts"][1]["samples"]["fast"]
    assert not shown["trees_left_out"]
    small = viewer_run(one, "x", most_tokens=5)
    assert small["trees_left_out"] and "trees" not in small["prompts"][0]["samples"]["fast"]
