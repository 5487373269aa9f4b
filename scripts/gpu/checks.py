"""Check that a new device is correct and takes the fast paths.

    python scripts/gpu/checks.py preflight OUT --shapes yi-34b yi-6b
    python scripts/gpu/checks.py lossless FOLDER ...       runs of experiment=gpu_correct
    python scripts/gpu/checks.py equal FOLDER ...          runs of stand-ins of the reference pair

Preflight, before anything is timed: whether both models use captured graphs and compiled layers,
and, on a GPU, whether a call of one node is as close to its bandwidth floor as `FLOOR_SHARES` asks
(if not, costs.sh shows which kernels take the time); OUT/checks.json has the figures.
Lossless: no BUG, no failed sample and, in float32, no text that differs from greedy's. Equal: the
text of every decoder is greedy's up to numeric ties. A check that compared
nothing fails. If one fails, the exit code is 1. stdout gets JSON. `--small` rehearses on a CPU.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from shapes import NO_GPU, load_shapes

from ouroboros.audit.reference_forward import plain_logits
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.pair import PairSpec, load_pair
from ouroboros.bench.run.prompts import PromptBuilder
from ouroboros.core.trace import first_mismatch
from ouroboros.core.tree import ROOT
from ouroboros.costs import Costs
from ouroboros.engine.model import CachedModel

REFERENCE = ("SmolLM2-135M-Instruct", "reference/target", "reference/draft")
FLOOR_SHARES = {"target": 0.92, "draft": 0.85}  # bandwidth floor / time of a call, at least
TIE = 0.5  # largest score difference that half precision may reverse


@dataclass(frozen=True)
class Check:
    """The result of a check: whether it passed, and its numbers."""

    passed: bool
    figures: Mapping[str, object]


def preflight(shapes: Sequence[str], small: bool) -> Iterator[tuple]:
    """Yield the checks that come before everything else: name, function and its arguments."""
    models = dict(zip(("target", "draft"), load_shapes(shapes, small=small).models, strict=True))
    yield "served", served, models
    yield "floor", floor_share, models, 256 if small else 512


def served(models: Mapping[str, CachedModel]) -> Check:
    """Check that no model has fallen back to slower calls than the GPU supports."""
    found = {role: model.describe_engine() for role, model in models.items()}
    return Check(not any(own["fallback"] for own in found.values()), found)


def floor_share(models: Mapping[str, CachedModel], context: int = 512) -> Check:
    """Check, on a GPU, that bandwidth floor / time of a one-node call reaches `FLOOR_SHARES` for
    each model, after `context` tokens."""
    costs = Costs.measure_grid(
        list(models.values()), nodes=[1], contexts=[context], visits=1, repeats=8
    )
    shares = {
        role: (costs.floor_ms(role, context) or 0.0) / getattr(costs, role).call_ms(1, context)
        for role in models
    }
    fast = all(share >= FLOOR_SHARES[role] for role, share in shares.items())
    shares["copy_gb_per_s"] = (costs.copy_bytes_per_s or 0) / 1e9
    return Check(fast or not torch.cuda.is_available(), shares)


def lossless(folder: Path) -> Check:
    """Check a finished run with audit=all: no BUG, no failure, and equal text in float32."""
    decoders = json.loads((folder / "summary.json").read_text())["decoders"]
    dtype = json.loads((folder / "run.json").read_text())["model"]["dtype"]
    verdicts = sum((Counter(row["verdicts"] or {}) for row in decoders.values()), Counter())
    failed = sum(row["failed"] for row in decoders.values())
    unequal = {name: row["unequal"] for name, row in decoders.items() if row["unequal"]}
    wrong = verdicts["BUG"] or failed or (dtype == "float32" and unequal)
    figures = {"verdicts": dict(verdicts), "failed": failed, "unequal": unequal}
    return Check(bool(verdicts) and not wrong, figures)


def equal(folder: Path) -> Check:
    """Check that texts differ from greedy's only at ties: in float32, the reference target, which
    computes the same as its stand-in, scores both tokens alike, up to `TIE` or twice what rounding
    moves the two scores by, in the target's own modules in the run's dtype."""
    results = ResultsFolder(folder)
    run = results.load_run()
    config = RunConfig.from_mapping(run["config"])
    targets = [
        load_pair(PairSpec(*REFERENCE, dtype=dtype, engine="eager"), with_draft=False).target
        for dtype in ("float32", run["model"]["dtype"])
    ]
    examples = {example.id: example for example in config.task.load()[1]}
    prompts = PromptBuilder(targets[0].tokenizer, texts=results.load_prompts())
    samples = [sample for sample in results.load_samples() if not sample.error]
    plain = {(s.example, s.repeat): s.new_tokens for s in samples if s.decoder == PLAIN}
    compared, ties, worst, wrong = 0, 0, 0.0, 0
    for sample in samples:
        key = sample.example, sample.repeat
        if sample.decoder == PLAIN or key not in plain:
            continue
        compared += 1
        at = first_mismatch(sample.new_tokens, plain[key])
        if at is None:
            continue
        ties += 1
        pair = [tokens[at] for tokens in (sample.new_tokens, plain[key]) if at < len(tokens)]
        prompt, new = prompts.ids(examples[sample.example]), plain[key][:at]
        choose = config.sampling.choose(*key, vocab=run["model"]["vocab_size"])
        full, rounded = (
            choose.scores(
                plain_logits(target.model, prompt, [*new, 0], rows=at + 1)[-1:].float(),
                [*prompt, *new],
                ROOT,
            )[0]
            for target in targets
        )
        gap = float(full[pair].diff().abs()) if len(pair) == 2 else math.inf
        worst = max(worst, gap)
        wrong += gap > max(TIE, 2 * float((rounded - full)[pair].abs().sum()))
    figures = {"compared": compared, "ties": ties, "largest_difference": worst, "wrong": wrong}
    return Check(compared > 0 and not wrong, figures)


def main(words: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("preflight", "lossless", "equal"))
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--shapes", nargs=2, help="of the target and the draft")
    parser.add_argument("--small", action="store_true", help="a rehearsal's sizes")
    args = parser.parse_args(words)
    before = args.kind == "preflight"
    if before and not args.small and not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    if before:
        checks = preflight(args.shapes, args.small)
    else:
        check = {"lossless": lossless, "equal": equal}[args.kind]
        checks = ((f"{args.kind} {folder.name}", check, folder) for folder in args.folders)
    found: list[dict] = []
    for name, check, *values in checks:
        try:
            result = check(*values)
        except Exception as error:
            result = Check(False, {"error": f"{type(error).__name__}: {error}"})
        say = f"{'passed' if result.passed else 'FAILED'}: {name} {dict(result.figures)}"
        print(say, file=sys.stderr)
        found.append({"name": name, **asdict(result)})
        if before:
            args.folders[0].mkdir(parents=True, exist_ok=True)
            (args.folders[0] / "checks.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found))
    return int(not all(check["passed"] for check in found))


if __name__ == "__main__":
    raise SystemExit(main())
