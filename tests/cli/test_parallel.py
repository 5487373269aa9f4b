"""`bench parallel=tree` with several processes: the samples of one process; killed, stopped,
resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import in_processes
from tqdm import tqdm

from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.run.parallel import on_own_device
from ouroboros.cli.main import main
from ouroboros.drafters.on_first_rank import OnFirstRank
from ouroboros.engine.parallel.ranks import Ranks

OWN = (
    *("task=prompts", "task.path=prompts.txt", "max_new=8", "model.dtype=float32"),
    *("decoder=[greedy,speculative,ouroboros]", "decoder.ouroboros.pool_state=task"),
    *("timing=false", "audit=differing", "decoder.speculative.gamma=3"),
)


@pytest.fixture
def job(saved_pair, monkeypatch):
    """The arguments of a run of nine samples on the tiny pair, from its folder."""
    monkeypatch.chdir(saved_pair)
    (saved_pair / "prompts.txt").write_text("def f(a):\n---\nabcabcab\n---\nx = 1\n")
    own = [f"model.{role}={saved_pair / role}" for role in ("target", "draft")]

    def of(folder, *more: str) -> list[str]:
        return ["bench", "model=hf", *own, *OWN, f"results_dir={folder}", *more]

    return of


def process(arguments: list[str], place: Path):
    """Work for a process: a command; returns its exit code and what it printed."""

    def work():
        tqdm.monitor_interval = 0  # no thread that a fork would lack
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
        told = place / f"told-{os.environ['RANK']}"
        with told.open("w") as file:
            os.dup2(file.fileno(), 2)
            sys.argv, sys.stdout, sys.stderr = ["ouroboros"], file, file
            try:
                code = main(arguments) or 0
            except SystemExit as ended:
                code = ended.code
        return code, told.read_text()

    return work


def tokens(folder) -> dict:
    return {s.key: s.new_tokens for s in ResultsFolder(folder).load_samples()}


@pytest.mark.slow
def test_two_processes_write_what_one_writes(job, run_bench, tmp_path):
    code, _, err = run_bench(*job(tmp_path / "one")[4:])
    assert code == 0, err
    parallel = job(tmp_path / "two", "parallel=tree")
    (first, told), (other, quiet) = (
        value for _, value in in_processes(2, process(parallel, tmp_path), tmp_path)
    )
    assert (first, other) == (0, 0) and quiet == ""
    assert json.loads(told.splitlines()[-1])["finished"]
    assert tokens(tmp_path / "two") == tokens(tmp_path / "one")
    run = ResultsFolder(tmp_path / "two").load_run()
    assert run["status"] == "finished" and run["parallel"]["ranks"] == 2
    assert 0 < run["parallel"]["bytes_per_step"] < 300
    audit = (tmp_path / "two" / "audit.jsonl").read_text()
    assert len(audit.splitlines()) == 3 and "BUG" not in audit


@pytest.mark.slow
def test_a_killed_or_stopped_run_goes_on(job, tmp_path, monkeypatch):
    arguments = job(tmp_path / "two", "parallel=tree", "audit=none")
    propose, calls = OnFirstRank.propose, []

    def ending(self, tokens, budget):
        """The second rank is killed in its ninth draft, or both get Ctrl-C there."""
        calls.append(len(calls))
        if len(calls) == 9 and (how == signal.SIGINT or os.environ.get("RANK") == "1"):
            os.kill(os.getpid(), how)
        return propose(self, tokens, budget)

    monkeypatch.setattr(OnFirstRank, "propose", ending)
    how = signal.SIGKILL
    (code, _), (killed, _) = in_processes(2, process(arguments, tmp_path), tmp_path / "killed")
    assert (code, killed) == (1, -signal.SIGKILL)
    kept, told = tokens(tmp_path / "two"), (tmp_path / "told-0").read_text()
    assert len(kept) < 9 and "Traceback" not in told
    assert "error: another rank is gone" in told.splitlines()[-1]
    assert ResultsFolder(tmp_path / "two").load_run()["status"] == "interrupted"
    how = signal.SIGINT
    stopped = [
        value for _, value in in_processes(2, process(arguments, tmp_path), tmp_path / "stopped")
    ]
    assert [code for code, _ in stopped] == [130, 130]
    assert f"rerun with results_dir={tmp_path / 'two'} to resume" in stopped[0][1]
    more = tokens(tmp_path / "two")
    assert kept.items() <= more.items() and len(more) < 9
    monkeypatch.setattr(OnFirstRank, "propose", propose)
    for code, value in in_processes(2, process(arguments, tmp_path), tmp_path / "ended"):
        assert code == 0 and value[0] == 0
    ended = tokens(tmp_path / "two")
    assert len(ended) == 9 and more.items() <= ended.items()
    assert len({(key[0], new) for key, new in ended.items()}) == 3


def test_a_mistake_is_told_by_one_rank(job, tmp_path):
    arguments = job(tmp_path / "none", "parallel=tree", "model.target=nowhere")
    found = [value for _, value in in_processes(2, process(arguments, tmp_path), tmp_path)]
    assert [code for code, _ in found] == [2, 2] and found[1][1] == ""
    errors = [line for line in found[0][1].splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "nowhere" in errors[0]


def test_what_cannot_be_parallel_is_refused_in_one_line(run_bench, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for more, says in (
        ([], "torchrun --nproc-per-node 2"),
        (["+model.options.tp_plan=auto"], "parallel=tree takes no tp_plan: it"),
    ):
        code, _, err = run_bench("max_new=4", "parallel=tree", *more)
        assert code == 2 and [says in x for x in err.splitlines() if "error:" in x] == [True]


def test_each_process_has_a_gpu_and_whole_models_of_one_dtype(monkeypatch):
    """Published pairs are spread over all GPUs where one process runs them."""
    spec = PairSpec("yi", "a/b", dtype="float32", options={"device_map": "auto", "revision": "x"})
    ranks = SimpleNamespace(size=2, broadcast=lambda dtype: dtype)
    assert on_own_device(spec, Ranks()) is spec
    assert on_own_device(spec, ranks) == replace(spec, options={"revision": "x"})
    first = SimpleNamespace(size=2, broadcast=lambda dtype: "bfloat16")
    assert on_own_device(replace(spec, dtype="auto"), first).dtype == "bfloat16"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert on_own_device(spec, ranks).device == "cuda:1"
    assert on_own_device(replace(spec, device="cuda:0"), ranks).device == "cuda:0"
