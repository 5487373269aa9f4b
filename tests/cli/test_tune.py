"""`ouroboros tune`: settings are ranked with the given costs; errors are one line."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from composing import ROOT
from measured import sample, step
from transformers import AutoTokenizer

import ouroboros
from ouroboros.costs import Costs, Surface
from ouroboros.tuning import tune as tuning
from ouroboros.tuning.search import SPACES
from ouroboros.tuning.tune import Machine, speed

DEVELOPMENT = list((ROOT / "conf" / "task").glob("development*.jsonl"))
ROLES = ("target", "draft")


def tuned(call, saved_pair, *words):
    pair = [f"model.{role}={saved_pair / role}" for role in ("target", "draft")]
    results = saved_pair / "tuned"
    small = ["limit=2", "first=1", "max_new=6", f"results_dir={results}", "model=hf", *pair]
    code, out, error = call("tune", *small, *words, pair=False)
    assert code == 0, error
    assert f"results: {results}\n" in error and (results / "tuning.md").exists()
    return json.loads(out.splitlines()[-1]), json.loads((results / "tuning.json").read_text())


def test_all_are_searched_on_the_same_texts_by_the_costs_given(call, saved_pair, monkeypatch):
    monkeypatch.setitem(SPACES, "prompt_lookup", {"max_ngram_size": [1, 2], "num_tokens": [2, 4]})
    monkeypatch.setitem(SPACES, "ouroboros_text", {"max_nodes": [16, 32]})
    monkeypatch.setitem(SPACES, "hf_prompt_lookup", {"prompt_lookup_num_tokens": [2]})
    names = ["prompt_lookup", "ouroboros_text", "hf_prompt_lookup"]
    told = []

    class CostAware(ouroboros.Ouroboros):
        def __init__(self, draft=None, *, costs=None, **options):
            told.append(costs)
            super().__init__(draft, costs=costs, **options)

    monkeypatch.setattr(ouroboros, "Ouroboros", CostAware)
    words = (f"decoder=[{','.join(names)}]", "trials=2", "temperatures=[0,0.8]")
    chosen, kept = tuned(call, saved_pair, *words)
    assert {cost.about["name"] for cost in told} == {"epyc", "flat"}
    assert chosen["ouroboros_text"]["flat"]["max_nodes"] in (16, 32, 64), "as configured, or tried"
    assert kept["texts"] == 2 * 2 * len(kept["prompts"]) and len(kept["report"]) == 6
    assert kept["prompts"] == sorted(path.name for path in DEVELOPMENT)
    for row in kept["report"]:
        assert row["best found"] >= row["configured"] > 0, "no worse than as configured"
        other = "epyc" if row["costs"] == "flat" else "flat"
        assert float(row["regret"].rstrip(" %")) >= 0 <= float(row[f"best by {other}"].rstrip(" %"))


def test_a_search_that_ended_is_not_made_again(call, saved_pair, monkeypatch):
    monkeypatch.setitem(SPACES, "prompt_lookup", {"num_tokens": [2, 4]})
    words = ("decoder=prompt_lookup", "trials=2", "temperatures=[0]", f"prompts=[{DEVELOPMENT[0]}]")
    first, report = tuned(call, saved_pair, *words)
    best, made = Machine.best, []

    def counted(machine, *args):
        made.append(machine.name)
        return best(machine, *args)

    monkeypatch.setattr(Machine, "best", counted)
    lines = saved_pair / "tuned" / "searches.jsonl"
    again, same = tuned(call, saved_pair, *words)
    assert made == [] and again == first and same["report"] == report["report"]
    lines.write_text(lines.read_text()[:-9])
    tuned(call, saved_pair, *words)
    assert made == ["flat"], "it was stopped while it wrote the last of them"
    tuned(call, saved_pair, *words, "costs=[flat]", "seed=1")
    assert made == ["flat"] * 2, "other trials"


def test_an_instruct_model_is_tuned_on_whole_answers_to_its_chat_template(
    call, saved_pair, tmp_path, monkeypatch
):
    pair = Path(shutil.copytree(saved_pair, tmp_path / "pair"))
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    tokenizer.chat_template = "{% for one in messages %}abab{{ one.content }}{% endfor %}"
    tokenizer.save_pretrained(pair / "target")
    monkeypatch.setitem(SPACES, "prompt_lookup", {"num_tokens": [2]})
    recorded, record = [], tuning.record
    monkeypatch.setattr(tuning, "record", lambda bench: recorded.append(bench) or record(bench))
    tuned(call, pair, "decoder=prompt_lookup", f"prompts=[{DEVELOPMENT[0]}]", "temperatures=[0]")
    (bench,) = recorded
    begins = tokenizer("abab").input_ids
    assert bench.prompts.ids(bench.examples[0])[: len(begins)] == begins
    assert not bench.task.stop


def test_costs_of_one_name_are_refused(call, tmp_path):
    files = [tmp_path / name / "mine.json" for name in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps(asdict(Costs(Surface.flat({1: 1.0, 64: 2.0})))))
    code, _, error = call("tune", f"costs=[{','.join(map(str, files))}]", "decoder=prompt_lookup")
    assert code == 2 and error.count("\n") == 1 and "have one name" in error


def test_a_setting_is_as_fast_as_its_calls_cost():
    one_large = [sample("a", "d", [step(3, 2)])]
    three_small = [sample("a", "d", [step(0, 0)] * 3)]
    flat, steep = (Costs(Surface.flat({1: 1.0, 4: cost})) for cost in (1.0, 6.0))
    assert speed(one_large, flat) == pytest.approx(3) and speed(three_small, flat) == 1
    assert speed(one_large, steep) == pytest.approx(0.5) and speed(three_small, steep) == 1
    failed = [*three_small, sample("b", "d", [step(0, 0)], error="no memory")]
    assert speed(failed, flat) == 0, "no setting wins by failing"
    assert speed([], flat) == 0
    few = Costs(Surface.flat({1: 10.0}))
    with pytest.raises(ValueError, match="cannot be tuned for these costs: a call scores"):
        speed(one_large, few)
