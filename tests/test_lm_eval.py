"""The lm-evaluation-harness, if installed, gets the completions of `hf`, and their speed."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from ouroboros.models.load import model_path

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.slow
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from ouroboros.bench.metrics.sample import step_s  # noqa: E402
from ouroboros.lm_eval import OuroborosLM  # noqa: E402

STOPS = ["\nclass", "turn s"]  # the second one ends in the middle of a token
TASK = """\
task: continue_functions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: {stops}, max_gen_toks: 40}}
metric_list: [{{metric: chrf, aggregation: chrf, higher_is_better: true}}]
"""
PAIR = {"pretrained": "reference/target", "draft": "reference/draft"}
OPTIONS = {"dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Run a small local task; return the raw completions by document, and the results' config."""
    folder = tmp_path_factory.mktemp("task")
    words = ("sum", "mean", "largest", "first")
    heads = [f'def {word}(values):\n    """Return the {word} value."""\n    ' for word in words]
    rows = [{"prompt": head + "total" * (word == "sum"), "answer": "return 1\n"}
            for head, word in zip(heads, words, strict=True)]  # fmt: skip
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.yaml").write_text(TASK.format(data=data, stops=json.dumps(STOPS)))
    tasks = TaskManager(include_path=str(folder), include_defaults=False)

    def evaluate(model) -> tuple[dict[int, str], dict]:
        found = lm_eval.simple_evaluate(
            model=model, tasks=["continue_functions"], task_manager=tasks, bootstrap_iters=0
        )
        samples = found["samples"]["continue_functions"]
        return {row["doc_id"]: row["resps"][0][0] for row in samples}, found["config"]

    return evaluate


@pytest.fixture(scope="module")
def plain(evaluate) -> dict[int, str]:
    """The completions of `hf`."""
    return evaluate(HFLM(model_path("reference/target"), **OPTIONS))[0]


@pytest.mark.parametrize("decoder", ["greedy", "speculative", "ouroboros"])
def test_completions_are_those_of_hf(evaluate, plain, decoder):
    model = OuroborosLM(**PAIR, decoder=decoder, batch_size=3, **OPTIONS)
    texts, config = evaluate(model)
    assert texts == plain and any(texts.values())
    found = config["ouroboros"]
    assert found["decoder"] == decoder and found["completions"] == len(texts)
    assert found["output_throughput"] > 0 and found["ttft_ms"] > 0
    for sample in model.samples:  # the call's preparation counts too
        after = sum(map(step_s, sample.steps[1:]))
        assert step_s(sample.steps[0]) < sample.ttft_s < sample.wall_s - after
    calls = found["target_forwards_per_token"]
    assert calls == 1 if decoder == "greedy" else calls < 1
    assert config["model_num_parameters"] > 1e6, "what hf tells is still there"
    assert json.dumps(found)


def test_what_would_spoil_the_figures_is_refused():
    model = OuroborosLM(**PAIR, max_nodes=8, **OPTIONS)
    assert model.get_model_info()["ouroboros"]["completions"] == 0, "the warm-up is not counted"
    with pytest.raises(ValueError, match="--use_cache"):
        model.set_cache_hook(None)
    with pytest.raises(ValueError, match="mixed_precision_dtype"):
        OuroborosLM(**PAIR, mixed_precision_dtype="bfloat16", **OPTIONS)


def test_both_doors_lead_to_the_model():
    (door,) = entry_points(group="lm_eval.models", name="ouroboros")
    assert door.load() is OuroborosLM
    command = [sys.executable, "-m", "ouroboros.lm_eval", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert "--model_args" in done.stdout and not done.returncode
