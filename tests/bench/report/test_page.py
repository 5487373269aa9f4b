"""The HTML page and the data of its viewer."""

import json
import re

import pytest
from measured import FAST, GREEDY, RUN, measured, measured_trees, sample, step, write_run
from transformers import AutoTokenizer

from ouroboros.bench.report.gather import load
from ouroboros.bench.report.viewer import LETTERS, find_tokenizer, viewer_run
from ouroboros.cli.main import main
from ouroboros.models.load import model_path

PAIR = {**RUN["model"], "target": "reference/target"}


def test_a_page_holds_everything_and_loads_nothing(tmp_path):
    failed = sample("<b>", "fast", [], error="ValueError: </script>", wall_s=0.0, ttft_s=None)
    write_run(tmp_path / "main", {**RUN, "model": PAIR}, [*GREEDY, *FAST, failed])
    assert main(["report", str(tmp_path / "main")]) == 0
    page = (tmp_path / "main" / "report" / "report.html").read_text()
    assert not re.search(r"https?://|<link|<script src|@import|url\((?!#)", page)
    assert page.count("</script>") == 2 and page.count("<figcaption>") == 3
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
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    assert "`" not in text and "**" not in text


def test_a_viewer_takes_prompts_at_even_distances(tmp_path):
    rows = [sample(str(i), "greedy", [step(0, 0)] * 10) for i in range(11)]
    write_run(tmp_path, RUN, rows)
    shown = viewer_run(load(tmp_path), "x", most_tokens=35)
    assert [prompt["id"] for prompt in shown["prompts"]] == ["0", "5", "10"]
    assert shown["prompts_in_all"] == 11 and shown["as_ids"] and shown["repeats"] == 1


def test_tokens_are_ids_without_the_runs_own_tokenizer(tmp_path):
    assert find_tokenizer("no/such-model") is find_tokenizer("reference/target", "other") is None
    write_run(tmp_path, RUN, [sample("a", "greedy", [step(0, 0)])])
    with pytest.raises(ValueError, match="tokenizer=no/such-model"):
        viewer_run(load(tmp_path), "x", most_tokens=9, tokenizer="no/such-model")


def test_a_run_of_models_given_by_paths_keeps_its_tokenizer(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_path("reference/target"))
    ids = tuple(tokenizer("def f(x):", add_special_tokens=False).input_ids)
    own = sample("a", "greedy", [step(0, 0)] * len(ids), tokens=ids)
    folder = write_run(tmp_path, {**RUN, "model": {**PAIR, "target": "gone"}}, [own])
    assert viewer_run(load(tmp_path), "x", most_tokens=99)["as_ids"]
    folder.write_tokenizer(tokenizer)
    (shown,) = viewer_run(load(tmp_path), "x", most_tokens=99)["prompts"]
    assert "".join(shown["samples"]["greedy"]["pieces"]) == "def f(x):"


def test_the_viewer_shows_the_first_repeat_in_any_order():
    again = [sample("a", "greedy", [step(0, 0)], tokens=(n,), repeat=n) for n in (1, 0)]
    (shown,) = viewer_run(measured(again), "x", most_tokens=9)["prompts"]
    assert shown["samples"]["greedy"]["pieces"] == ["0 "]


def test_the_viewer_has_the_trees(tmp_path):
    run = measured_trees(tmp_path, PAIR)
    shown = viewer_run(run, "x", most_tokens=100)
    first, second = shown["prompts"][0]["samples"]["fast"]["trees"]
    assert first["parent"] == [-1] and second["parent"] == [-1, 0, 0, 1, 1]
    assert second["percent"] == [100, 60, 30, 80, 10] and second["path"] == [0, 1]
    assert second["source"][1] == LETTERS["phrase"] and second["source"][2] == LETTERS["draft"]
    assert all(shown["texts"][place] for place in (*second["text"], second["then"]))
    assert "trees" not in shown["prompts"][1]["samples"]["fast"]
    assert not shown["trees_left_out"] and not shown["as_ids"]
    small = viewer_run(run, "x", most_tokens=5)
    assert small["trees_left_out"] and "trees" not in small["prompts"][0]["samples"]["fast"]
