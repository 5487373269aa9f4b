"""A measured cost curve: what a step costs by the number of nodes that the target scores.

With it, counts alone predict the time of a decoder on a machine that it never ran on. Invariant:
nothing is extrapolated; a step larger than any that was measured is an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import yaml

from ouroboros.bench.sample import Sample
from ouroboros.trace import StepRecord


@dataclass(frozen=True)
class CostCurve:
    """`verify_ms` by nodes scored (linear in between), `draft_ms` per draft call, `host_ms` per
    step, `prefill_ms` on top of a run's first step."""

    verify_ms: Mapping[int, float]
    draft_ms: float = 0.0
    host_ms: float = 0.0
    prefill_ms: float = 0.0

    def step_ms(self, step: StepRecord) -> float:
        """Return the milliseconds of one step. Raises `ValueError` beyond the curve."""
        nodes = sorted(self.verify_ms)
        if not nodes[0] <= step.scored <= nodes[-1]:
            raise ValueError(
                f"a step scores {step.scored} nodes, the cost curve covers {nodes[0]} to "
                f"{nodes[-1]}: measure a curve that reaches further"
            )
        verify = float(np.interp(step.scored, nodes, [self.verify_ms[n] for n in nodes]))
        return verify + self.draft_ms * step.draft_calls + self.host_ms

    def run_ms(self, steps: Sequence[StepRecord]) -> float:
        """Return the milliseconds of a whole run."""
        return sum(map(self.step_ms, steps)) + (self.prefill_ms if steps else 0.0)

    @classmethod
    def load(cls, path: Path) -> CostCurve:
        """Read YAML or JSON: {verify_ms: {1: 14.8, 8: 15.6, 64: 21.0}, draft_ms: 2.9, ...}."""
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
            verify = {int(n): float(ms) for n, ms in values.pop("verify_ms").items()}
            curve = cls(verify, **{name: float(ms) for name, ms in values.items()})
        except (OSError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"cannot read the cost curve {path}: {reason}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no cost curve: give verify_ms (nodes: milliseconds) and, if known, "
                "draft_ms, host_ms, prefill_ms"
            ) from error
        if not verify:
            raise ValueError(f"{path}: verify_ms is empty; give milliseconds for one node at least")
        return curve

    @classmethod
    def measured(cls, samples: Sequence[Sample]) -> CostCurve:
        """Return the medians of timed samples; first steps hold the prefill and count only there.

        Raises `ValueError` where there is no step to learn from.
        """
        later = [step for s in samples for step in s.steps[1:] if step.scored]
        if not later:
            raise ValueError("these samples have no timed steps: give those of a timing run")
        by_nodes: dict[int, list[float]] = defaultdict(list)
        for step in later:
            by_nodes[step.scored].append(1e3 * step.verify_s)
        calls = sum(step.draft_calls for step in later)
        curve = cls(
            {nodes: median(times) for nodes, times in by_nodes.items()},
            1e3 * sum(step.draft_s for step in later) / calls if calls else 0.0,
            median(1e3 * step.host_s for step in later),
        )
        plain = curve.verify_ms[min(curve.verify_ms)]
        first = [1e3 * s.steps[0].verify_s for s in samples if s.steps and s.steps[0].scored]
        prefill = max(0.0, median(first) - plain)
        return cls(curve.verify_ms, curve.draft_ms, curve.host_ms, prefill)
