"""The provider for inspect_ai, if installed, returns the completions of its `hf` provider."""

import pytest

from ouroboros.models.load import model_path

inspect_ai = pytest.importorskip("inspect_ai")
pytestmark = pytest.mark.slow

PROMPTS = ["def total(values):\n    ", "def mean(values):\n    return "]
OPTIONS = {"use_chat_template": False, "do_sample": False, "dtype": "float32", "device": "cpu"}


def completions(tmp_path, model: str, **options) -> list[str]:
    """Run both prompts through an inspect task; return their completions."""
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes

    task = inspect_ai.Task(
        dataset=[Sample(input=prompt, target="return") for prompt in PROMPTS],
        scorer=includes(),
        config=GenerateConfig(max_tokens=24),
    )
    served = get_model(model, memoize=False, **OPTIONS, **options)
    (log,) = inspect_ai.eval(task, model=served, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    return [sample.output.completion for sample in log.samples]


def test_completions_are_those_of_hf(tmp_path):
    plain = completions(tmp_path, f"hf/{model_path('reference/target')}")
    for decoder in ("speculative", "ouroboros"):
        pair = {"draft": "reference/draft", "decoder": decoder}
        assert completions(tmp_path, "ouroboros/reference/target", **pair) == plain
    assert any(plain)
