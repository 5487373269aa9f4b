"""One thread and no network for every test, and the same examples on every run."""

import contextlib
import copy
import gc
import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# absl (which rouge-score logs with) keeps the stderr it finds when it is imported, and closes it
# when Hydra sets logging up anew: that must not be the stream in which pytest captures.
with contextlib.redirect_stderr(sys.__stderr__):
    import absl.logging  # noqa: F401
import pytest
import torch
import yaml
from hypothesis import HealthCheck, settings

yaml.SafeLoader = yaml.CSafeLoader  # Hydra composes hundreds of configs

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
torch.set_num_threads(1)


LONGEST = (  # files that two workers begin with: one compiles the CPU kernels, one the drafter
    *("engine/test_exact.py", "cli/test_conf.py", "engine/test_triton.py", "cli/test_costs.py"),
    *("integrations/test_generate.py", "cli/test_errors.py", "audit/test_audit.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that no worker is left alone with one at the end."""
    order = {
        Path(__file__).resolve().parent.joinpath(name).resolve(): at
        for at, name in enumerate(LONGEST)
    }
    items.sort(key=lambda item: order.get(item.path.resolve(), len(order)))


def pytest_collection_finish() -> None:
    """Leave the imported modules out of garbage collections, which would visit them each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Undo `pytest_collection_finish`, so that nothing is called a leak."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch):
    """Runs do not wait to measure the machine's load; tests/bench/run/test_refusals.py has that."""
    monkeypatch.setattr("psutil.cpu_percent", lambda *_, **__: [0.0] * 512)


@pytest.fixture(scope="module")
def models():
    """An untouched model, a copy for us and its draft."""
    from tiny import llama, noisy

    model = llama()
    return model, copy.deepcopy(model), noisy(model)


@pytest.fixture(scope="module")
def pair(models):
    """A target and a draft that often agrees with it."""
    from ouroboros import CachedModel

    return tuple(map(CachedModel, models[1:]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU, or Triton's interpreter, where there is none."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    interpreted = importlib.util.find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1"
    if item.get_closest_marker("triton") and not (interpreted or torch.cuda.is_available()):
        pytest.skip("needs a GPU, or Triton's interpreter")
