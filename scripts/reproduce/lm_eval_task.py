"""Evaluate decoders with the lm-evaluation-harness: equal completions at different speeds.

    python scripts/reproduce/lm_eval_task.py results/lm_eval

The task is local: the reference pair continues HumanEval's prompts, and chrF compares completions
with the reference solutions; no program is run. Writes the harness's results for each decoder to
FOLDER/DECODER.json, and fails if a completion differs from the harness's `hf` model.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import yaml
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import ouroboros.lm_eval  # noqa: F401  (registers the model; later releases find it themselves)
from ouroboros.bench.run.identity import without_paths
from ouroboros.bench.tasks.humaneval import HumanEval
from ouroboros.models.load import model_path

STRIDE = 8  # every eighth of 164 prompts
MAX_NEW = 96
DECODERS = ("greedy", "prompt_lookup", "speculative", "ouroboros")
NAME = "humaneval_text"


def write_task(folder: Path) -> TaskManager:
    """Write the task in the harness's format, and return a manager that finds it."""
    task = HumanEval()
    rows = [
        {"prompt": example.prompt, "solution": example.data["canonical_solution"]}
        for example in list(task.load())[::STRIDE]
    ]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "task": NAME,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{solution}}",
        "generation_kwargs": {"until": list(task.stop), "max_gen_toks": MAX_NEW},
        "metric_list": [{"metric": "chrf", "aggregation": "chrf", "higher_is_better": True}],
    }
    (folder / "task.yaml").write_text(yaml.safe_dump(config))
    return TaskManager(include_path=str(folder), include_defaults=False)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tasks, expected = write_task(Path(folder)), None
        for decoder in ("hf", *DECODERS):
            plain = f"pretrained={model_path('reference/target')}"
            pair = f"pretrained=reference/target,draft=reference/draft,decoder={decoder}"
            found = simple_evaluate(
                "hf" if decoder == "hf" else "ouroboros",
                f"{plain if decoder == 'hf' else pair},dtype=float32",
                tasks=[NAME],
                task_manager=tasks,
                device="cpu",
                bootstrap_iters=0,
            )
            texts = {row["doc_id"]: row["resps"] for row in found["samples"][NAME]}
            expected = texts if decoder == "hf" else expected
            if texts != expected:
                raise SystemExit(f"{decoder}: the completions are not those of hf")
            kept = {"results": found["results"], "config": found["config"]}
            text = json.dumps(without_paths(kept), indent=1, default=str)
            (out / f"{decoder}.json").write_text(text + "\n")
            print(decoder, found["results"][NAME], found["config"].get("ouroboros"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
