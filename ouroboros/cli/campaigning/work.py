"""The stages of ouroboros campaign: what each one does, part by part."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from ouroboros.audit.reference_forward import recast
from ouroboros.bench.campaign.attention_trial import attention_agrees, attention_times
from ouroboros.bench.campaign.checks import Check, engines_agree, noise_agrees, rolls_agree
from ouroboros.bench.campaign.replays import kernel_table
from ouroboros.bench.report.folder_report import make_report
from ouroboros.bench.report.time_report import time_facts
from ouroboros.bench.run.pair import PairSpec, load_pair
from ouroboros.bench.run.provenance import versions
from ouroboros.bench.verdict.audit_report import load_audit, tally
from ouroboros.cli.campaigning.runs import compared
from ouroboros.cli.campaigning.seconds import ADVICE_S, TESTS_S
from ouroboros.cli.campaigning.stages import Stage, fallbacks
from ouroboros.cli.profiling import floor_shares
from ouroboros.cli.timing import measured_costs, timed
from ouroboros.costs.bandwidth import copy_bandwidth
from ouroboros.drafters.draft_tree.compiled import WHY_NOT
from ouroboros.engine.model import CachedModel
from ouroboros.engine.serving import serving
from ouroboros.select import Sampler, argmax

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ("reference", "reference/target", "reference/draft")
GPU_TESTS = "mark.gpu"
KERNELS_AT = 512  # tokens of context


def preflight(stage: Stage) -> None:
    """What would spoil everything after it: versions, the kernel, a graph of each model, and how
    near its floor one of them is."""
    own, device = stage.options, stage.device
    stage.attempt("versions", lambda: {**versions(), "growth": WHY_NOT or "compiled"})
    agrees = partial(attention_agrees, device, getattr(torch, own["dtype"]), **own["attention"])
    stage.check("attention", agrees)
    stage.attempt("copy_gb_per_s", lambda: copy_bandwidth(device) / 1e9)
    for name in own["jobs"]:
        stage.check(f"{name} served", partial(served, stage, name))
        stage.attempt(f"{name} of_floor", partial(one_node, stage, name))
    stage.check("all_passed", partial(all_passed, stage))
    if not stage.figures["all_passed"]["passed"]:
        stage.failures["preflight"] = str(stage.figures["all_passed"]["note"])


def served(stage: Stage, name: str) -> Check:
    """Load a job's pair: is each of its models served the fast way?"""
    pair = stage.pair(stage.config(name))
    found = dict(zip(("target", "draft"), map(serving, pair.models), strict=False))
    reasons = fallbacks(pair)
    return Check(f"{name} served", not reasons, found, note="; ".join(reasons))


def one_node(stage: Stage, name: str) -> dict:
    """Return the share of its floor that a call of one node reaches, of each model."""
    costs = measured_costs(stage.pair(stage.config(name)), stage.options["profile"])
    return floor_shares(time_facts(costs, []))


def all_passed(stage: Stage) -> Check:
    """Say whether every check of the stage so far passed, and which did not."""
    checks = ((n, part) for n, part in stage.figures.items() if isinstance(part, Mapping))
    wrong = [name for name, part in checks if part.get("passed") is False]
    return Check("all_passed", not wrong and not stage.failures, note=", ".join(wrong))


def correct(stage: Stage) -> None:
    """Engines, kernel, rolled drafts and noise agree on this device; every decoder is lossless."""
    own, device = stage.options, stage.device
    stage.check("noise", partial(noise_agrees, device))
    for name in own["dtypes"]:
        agrees = partial(attention_agrees, device, getattr(torch, name), **own["attention"])
        stage.check(f"attention {name}", agrees)
    for name in own["jobs"]:
        stage.attempt(name, partial(lossless, stage, name))
    stage.pairs.drop()
    for name in own["dtypes"]:
        engines(stage, getattr(torch, name), name)
    stage.attempt("tests", gpu_tests)
    stage.check("all_passed", partial(all_passed, stage))


def engines(stage: Stage, dtype: torch.dtype, name: str) -> None:
    """Compare the static engine with the eager one, and rolling with stepping, on both models of
    the reference pair."""
    own, half = stage.options, dtype.itemsize < 4
    spec = PairSpec(*REFERENCE, dtype=name, engine="eager", device=str(stage.device))
    pair = load_pair(spec, with_draft=True)
    for role, eager in zip(("target", "draft"), pair.models, strict=True):
        static = CachedModel(eager.model, tokenizer=eager.tokenizer, engine="static")
        exact = recast(eager.model, torch.float32, stage.device) if half else None
        agree = partial(
            engines_agree,
            f"engines {role} {name}",
            eager,
            static,
            contexts=own["contexts"],
            nodes=own["nodes"],
            exact=None if exact is None else CachedModel(exact, engine="eager"),
        )
        stage.check(f"engines {role} {name}", agree)
        prompts = [[(seed * 37 + i) % 1000 for i in range(9 + 40 * seed)] for seed in range(3)]
        for what, choose in (("greedy", argmax), ("sampled", Sampler(temperature=0.8, seed=3))):
            label = f"roll {role} {name} {what}"
            rolled = partial(rolls_agree, label, static, prompts, choose=choose)
            stage.check(label, partial(rolled, count=own["roll_tokens"]))


def lossless(stage: Stage, name: str) -> dict:
    """Run every decoder; count completions that differ from greedy's, and their verdicts."""
    folder = stage.job(name)
    summary, rows = make_report(folder), load_audit(folder)
    half = folder.load_run()["model"]["dtype"] in ("bfloat16", "float16")
    unequal = {n: row["unequal"] for n, row in summary["decoders"].items()}
    verdicts = {n: tally(rows, n) for n in unequal}
    bugs = sum(found.get("BUG", 0) for found in verdicts.values())
    wrong = bugs or any(row["failed"] for row in summary["decoders"].values())
    wrong = wrong or not (half or not any(unequal.values()))
    return {"passed": not wrong, "unequal": unequal, "bugs": bugs, "verdicts": verdicts}


def gpu_tests() -> dict:
    """Run the tests that need a GPU, where pytest and the tests are at hand; "passed" is None where
    they are not, or where none was run to its end."""
    files = [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if GPU_TESTS in p.read_text()]
    if not files or importlib.util.find_spec("pytest") is None:
        return {"passed": None, "said": "no tests or no pytest here"}
    command = [sys.executable, "-m", "pytest", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "gpu", *map(str, files)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=TESTS_S,
    )
    lines = (done.stdout.strip() or done.stderr.strip() or "nothing was said").splitlines()
    passed = done.returncode == 0 and ("passed" in lines[-1] or None)
    return {"passed": passed, "files": [p.name for p in files], "said": lines[-1]}


def headline(stage: Stage) -> None:
    """The published headline's shapes: every decoder, transformers' own, and the goals. One that is
    left out is a failure, said first."""
    for name in stage.options["jobs"]:
        stage.attempt(name, partial(compared, stage, name, profile=stage.options["profile"]))
        if "left_out" in stage.figures.get(name, {}):
            reason = stage.figures[name]["left_out"]
            stage.failures = {f"no headline, {name}": reason, **stage.failures}


def costs(stage: Stage) -> None:
    """Kernels of some calls; calls by nodes and context; fixed shapes against eager calls; our
    attention kernel against torch."""
    own = stage.options
    for name in own["jobs"]:
        for role, nodes in own["kernels"]:
            stage.attempt(f"{name} {role} {nodes}", partial(kernels, stage, name, role, nodes))
    stage.attempt("copy_gb_per_s", lambda: copy_bandwidth(stage.device) / 1e9)
    layouts = partial(attention_times, stage.device, getattr(torch, own["dtype"]))
    stage.attempt("attention", partial(layouts, **own["attention"]))
    for name in own["jobs"]:
        stage.attempt(name, partial(compared, stage, name, profile=own["profile"]))
        stage.attempt(f"{name} engines", partial(engine_gain, stage, name))


def kernels(stage: Stage, name: str, role: str, nodes: int) -> dict:
    """Return what one call of one of the models consists of."""
    return kernel_table(getattr(stage.pair(stage.config(name)), role), nodes, KERNELS_AT)


def engine_gain(stage: Stage, name: str) -> dict:
    """Return milliseconds of calls of the same weights by both engines."""
    pair = stage.pair(stage.config(name))
    own, found = stage.options["gain"], {}
    for role, model in zip(("target", "draft"), pair.models, strict=False):
        eager = CachedModel(model.model, tokenizer=model.tokenizer, engine="eager")
        engines = {type(model.engine).__name__.lower(): model, "eager": eager}
        surfaces = timed(list(engines.values()), own, f"engines, {role}")
        found[role] = {
            kind: {str(context): row for context, row in surface.ms.items()}
            for kind, surface in zip(engines, surfaces, strict=True)
        }
    return found


def pairs(stage: Stage) -> None:
    """Other pairs' shapes and other tasks, run after run."""
    for name in stage.options["jobs"]:
        stage.attempt(name, partial(compared, stage, name))


def sweep(stage: Stage) -> None:
    """Many settings of the decoders in one run, and what the advisor predicts of each."""
    for name in stage.options["jobs"]:
        stage.attempt(name, partial(compared, stage, name, profile=stage.options["profile"]))
        stage.pairs.drop()
        stage.attempt(f"{name} advice", partial(advice, stage.folder.path / name))


def advice(path: Path) -> dict:
    """Return how well the advisor's predictions agree with a run, in a process of its own."""
    out = path.with_name(f"{path.name}_advice")
    shutil.rmtree(out, ignore_errors=True)
    options = (f"check={path}", f"costs={path / 'costs.json'}", f"results_dir={out}")
    command = [sys.executable, "-m", "ouroboros", "advise", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ADVICE_S)
    if done.returncode:
        raise ValueError((done.stderr.strip() or "nothing was said").splitlines()[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    return {key: found[key] for key in ("what", "about", "accuracy")}


STAGES: Mapping[str, Callable[[Stage], None]] = {
    "preflight": preflight,
    "headline": headline,
    "sampled": headline,
    "costs": costs,
    "correct": correct,
    "sweep": sweep,
    "pairs": pairs,
}
