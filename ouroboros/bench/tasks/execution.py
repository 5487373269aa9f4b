"""Whether a task may execute completions, and within which limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ouroboros.bench.tasks.sandbox import Limits, check


@dataclass(frozen=True)
class Execution:
    """Scores code by a problem's own tests, in a limited subprocess, where that is `allowed`.

    It is untrusted code. `timeout_s` is its wall limit, `memory_mib` its address space.
    """

    allowed: bool
    timeout_s: float
    memory_mib: int

    def score(self, problem: Mapping, code: str) -> dict[str, float]:
        """Return {"passed": 1.0 or 0.0}, or {} where code must not be executed."""
        if not self.allowed:
            return {}
        limits = Limits(wall_s=self.timeout_s, memory_bytes=self.memory_mib << 20)
        return {"passed": float(check(dict(problem), code, limits).passed)}
