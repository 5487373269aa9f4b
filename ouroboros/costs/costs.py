"""Call costs of a pair of models on one machine, and times predicted from them.

`Costs` are loaded (by name, from a file or a small table), measured on this machine, derived from
timed runs, or computed from bytes and bandwidth. With them, a `CostModel` predicts the seconds of a
run from its counts. Predictions are samples, so all metrics and intervals of the benchmark apply to
them too.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from ouroboros.core.trace import StepRecord
from ouroboros.costs.surface import Footprint, Surface

if TYPE_CHECKING:
    from ouroboros.engine.model import CachedModel

NAMES = ("epyc", "flat", "h100-34b-6b", "h100-70b-7b", "h200-34b-6b", "h200-70b-7b")
"""Shipped costs. A call of 64 nodes takes 2.5 times as long as a call of one in "epyc" (a few CPU
cores) and 1.2 times as long in "flat" (as expected of a GPU). The others are rooflines of GPUs."""
UNTIMED = "epyc"  # the costs of runs without timing
PROBED_NODES = (1, 2, 3, 4, 6, 8, 12, 24, 64, 96)  # tree sizes timed; others are interpolated
PROBED_CONTEXT = 1024  # up to this length one context is timed, since length hardly matters
PROBE_VISITS, PROBE_S, PROBES = 5, 4.0, 3
PROBED_PROMPTS = (64, 256, 1024)  # lengths of timed draft prefills, at most its `prefill_limit`
NOISY = 0.2  # measurements with a larger relative spread are repeated, up to `PROBES` in all
ROOFLINE_NODES, ROOFLINE_CONTEXTS = 1 << 14, tuple(4**k for k in range(11))
Sample = Any
"""`ouroboros.bench.metrics.sample.Sample`; not imported, because costs must not import bench."""


@dataclass(frozen=True)
class Costs:
    """Call costs of a pair of models on a machine.

    - `target`, `draft`: milliseconds of one call by context and nodes; `draft` is None if unknown
    - `host_ms`: milliseconds per step outside both models, by decoder ("": all others)
    - `prefill_ms`: the target's prefill, added to the first step of a sequence. It holds for
      `prefill_tokens` prompt tokens and is scaled by length (None: the same for all prompts)
    - `reading_ms`: the draft's prefill in milliseconds, by number of tokens, if measured
    - `footprints`: by "target" and "draft", the bytes of weights and of a cached token
    - `copy_bytes_per_s`: memory bandwidth, bytes read plus bytes written
    - `about`: models, machine, dtype and threads of the measurement, as plain values
    """

    target: Surface
    draft: Surface | None = None
    host_ms: Mapping[str, float] = field(default_factory=dict)
    prefill_ms: float = 0.0
    footprints: Mapping[str, Footprint] = field(default_factory=dict)
    copy_bytes_per_s: float | None = None
    about: Mapping[str, object] = field(default_factory=dict)
    reading_ms: Mapping[float, float] = field(default_factory=dict)
    prefill_tokens: float | None = None

    def __post_init__(self) -> None:
        for ms in (*self.host_ms.values(), self.prefill_ms, *self.reading_ms.values()):
            if not 0 <= ms < math.inf:
                raise ValueError(f"host or prefill milliseconds are {ms}")
        reading = {float(tokens): ms for tokens, ms in self.reading_ms.items()}  # JSON keys: text
        object.__setattr__(self, "reading_ms", dict(sorted(reading.items())))

    @classmethod
    def load(cls, source: str | Path | Mapping) -> Costs:
        """Return the costs of a name in `NAMES`, a file (YAML or JSON), or a mapping.

        A file or mapping has the format of `save`, the arguments of `roofline`, or a small table:
        {verify_ms: {1: 14.8, 8: 15.6, 64: 21.0}, draft_ms: 2.9, host_ms: 1, prefill_ms: 30}, with
        milliseconds by nodes; `draft_ms` may be such a mapping too. Raises `ValueError` otherwise.
        """
        values: Any = source
        named = not isinstance(source, Mapping) and source in NAMES
        path = Path(__file__).parent / f"{source}.yaml" if named else Path(str(source))
        if not isinstance(source, Mapping) and not path.is_file():
            raise ValueError(f"costs={source} is neither a file nor one of {', '.join(NAMES)}")
        try:
            if not isinstance(source, Mapping):
                text = path.read_text(encoding="utf-8")
                # YAML would read JSON's 1e-05 as text.
                values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
            if "verify_ms" in values:
                return cls._of_table(**values)
            if "bandwidth_gb_s" in values:
                pair = {role: Footprint(**values[role]) for role in ("target", "draft")}
                return cls._of_roofline(**{**values, **pair})
            footprints = {role: Footprint(**sizes) for role, sizes in values["footprints"].items()}
            draft = values["draft"] and Surface(**values["draft"])
            models = {"target": Surface(**values["target"]), "draft": draft}
            return cls(**{**values, **models, "footprints": footprints})
        except Exception as error:
            raise ValueError(
                f"{source} holds no costs: give verify_ms (nodes: milliseconds) and, if known, "
                "draft_ms, host_ms, prefill_ms; or a measured costs.json"
            ) from error

    @classmethod
    def _of_table(cls, verify_ms, draft_ms=None, host_ms=0.0, prefill_ms=0.0, about=None) -> Costs:
        """Return the costs of a small table; see `load`."""
        if draft_ms is not None:
            by_nodes = isinstance(draft_ms, Mapping)
            draft_ms = Surface.flat(draft_ms) if by_nodes else Surface.constant(float(draft_ms))
        host = {"": float(host_ms)} if host_ms else {}
        return cls(Surface.flat(verify_ms), draft_ms, host, float(prefill_ms), about=about or {})

    @classmethod
    def _of_roofline(cls, target, draft, bandwidth_gb_s, tflops, host_ms, about) -> Costs:
        """Return lower bounds of a pair's costs on a machine, by the roofline model.

        A call takes the longer of two times: reading weights, keys and values once at
        `bandwidth_gb_s` (10^9 bytes/s), and computing at `tflops` (10^12 operations/s; two
        operations per node and two-byte weight). Real calls take longer.
        """
        surfaces, footprints = list[Surface](), {"target": target, "draft": draft}
        for model in footprints.values():
            flops_ms, table = model.read_bytes / tflops / 1e9, dict[float, dict]()
            for context in ROOFLINE_CONTEXTS:
                read_ms = model.call_bytes(context) / bandwidth_gb_s / 1e6
                sizes = (1.0, min(max(1.0, read_ms / flops_ms), ROOFLINE_NODES), ROOFLINE_NODES)
                table[context] = {nodes: max(read_ms, nodes * flops_ms) for nodes in sizes}
            surfaces.append(Surface(table))
        return cls(
            surfaces[0],
            surfaces[1],
            host_ms=host_ms,
            footprints=footprints,
            copy_bytes_per_s=1e9 * bandwidth_gb_s,
            about={"computed": "bytes / bandwidth", **about},
        )

    def save(self, path: Path) -> None:
        """Write the costs as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def measure(
        cls, target: CachedModel, draft: CachedModel | None = None, *, context: int = PROBED_CONTEXT
    ) -> Costs:
        """Time calls of both models for a few seconds: up to 96 nodes, on up to `context` tokens.

        The models alternate, with up to five calls per size; costs are medians, so a larger tree
        may cost less than a smaller one (except with our CPU kernels). A noisy measurement is
        repeated, and the one with the smallest relative spread is used (`about["spread"]`). An
        engine that pads calls is timed at its padded sizes. Contexts too close to the model's limit
        for a 96-node tree get the costs of the longest context measured. On a GPU, also measures
        the models' bytes and the memory bandwidth. Empties the models' caches.
        """
        from ouroboros.costs import timing
        from ouroboros.engine.static import NODES, Static

        reading: dict[float, float] = {}
        models = [target] if draft is None else [target, draft]
        reach = min(model.max_len for model in models)
        largest = min(PROBED_NODES[-1], reach)
        pads = any(isinstance(model.engine, Static) for model in models)
        sizes = [n for n in (NODES if pads else PROBED_NODES) if n <= largest]
        longest = max(1, min(context, reach - sizes[-1]))
        best: list[Surface] = []
        for seed in range(PROBES):
            surfaces = timing.time_calls(
                models,
                nodes=sizes,
                contexts=[longest] if longest <= PROBED_CONTEXT else [longest // 4, longest],
                visits=PROBE_VISITS,
                repeats=1,
                seed=seed,
                limit_s=PROBE_S,
            )
            best = min(best or surfaces, surfaces, key=_spread)
            if _spread(best) <= NOISY:
                break
        if draft is not None:
            most = min(longest, draft.prefill_limit or longest)
            prompts = sorted({min(tokens, most) for tokens in PROBED_PROMPTS})
            reading = timing.time_reading(draft, prompts)
        about = {"measured": "at load", "spread": round(_spread(best), 3)}
        floors: dict[str, Any] = timing.floors(models) if target.device.type == "cuda" else {}
        draft_calls = best[1] if draft else None
        return cls(best[0], draft_calls, reading_ms=reading, about=about, **floors)

    @classmethod
    def measure_grid(cls, models: Sequence[CachedModel], **grid) -> Costs:
        """Time calls of a target and an optional draft (`models`, in this order) at every tree size
        and context; measure their bytes and this machine's memory bandwidth. `grid` are arguments
        of `timing.time_calls`."""
        from ouroboros.costs import timing

        floors: dict[str, Any] = timing.floors(models)
        surfaces: list[Any] = timing.time_calls(models, **grid)
        return cls(*surfaces, **floors)

    @classmethod
    def of_samples(cls, samples: Sequence[Sample]) -> Costs:
        """Return mean costs of timed samples, pooled over all contexts.

        First steps include the prefill and are used for `prefill_ms` only. Raises `ValueError` if
        no step was timed, and for samples of batches.
        """
        later = [(s.decoder, step) for s in samples for step in s.steps[1:] if step.scored]
        if not later:
            raise ValueError("these samples have no timed steps: give those of a timing run")
        if any(step.rows > 1 for _, step in later):
            raise ValueError(
                "these samples were decoded in batches, and a joint call is not a call of one "
                "sequence: give a run with batch_size=1"
            )
        context = max(s.prompt_tokens + len(s.new_tokens) for s in samples)
        verify = _means((step.scored, step.verify_s) for _, step in later)
        host = _means((name, step.host_s) for name, step in later)
        host |= _means(("", step.host_s) for _, step in later)
        drafting = [step for _, step in later if step.draft_calls]
        by_nodes = _means((draft_nodes(s), s.draft_s / s.draft_calls) for s in drafting)
        draft = Surface({context: by_nodes}) if drafting else None
        first = [1e3 * s.steps[0].verify_s for s in samples if s.steps and s.steps[0].scored]
        prefill = max(0.0, mean(first) - verify[min(verify)])
        tokens = mean(s.prompt_tokens for s in samples if s.steps and s.steps[0].scored)
        return cls(Surface({context: verify}), draft, host, prefill, prefill_tokens=tokens)

    def draft_ratio(self, context: int | None = None) -> float | None:
        """Return the cost of a one-node draft call / the cost of a one-node target call; None
        without a draft. `context` defaults to the smallest measured one."""
        if self.draft is None:
            return None
        at = min(self.target.ms) if context is None else context
        return self.draft.call_ms(1, at) / self.target.call_ms(1, at)

    def draft_reading_ms(self, tokens: int, context: float) -> float:
        """Return the milliseconds that the draft takes to read `tokens` uncached tokens.
        Interpolates between measured prefills; beyond the longest one, the time grows in
        proportion. If none was measured, adds up calls of the largest measured size."""
        assert self.draft is not None
        if self.reading_ms:
            sizes, ms = list(self.reading_ms), list(self.reading_ms.values())
            return float(np.interp(tokens, [0, *sizes], [0, *ms])) * max(1.0, tokens / sizes[-1])
        largest = min(max(row) for row in self.draft.ms.values())
        calls, rest = divmod(tokens, largest)
        call_ms = self.draft.call_ms
        return calls * call_ms(largest, context) + (call_ms(rest, context) if rest else 0.0)

    def drafting_ms(self, step: StepRecord, context: int) -> float:
        """Return the milliseconds of a step's draft calls on a sequence of `context` tokens.

        All draft calls of the step are assumed to have the same size. If that exceeds the largest
        measured call, the time to read uncached tokens is added separately (`draft_reading_ms`).
        Raises `ValueError` for calls larger than measured, and if the costs have no draft model.
        """
        if not step.draft_calls:
            return 0.0
        if self.draft is None:
            raise ValueError("the costs have no draft model: measure the pair or give draft_ms")
        reading, call_ms = 0.0, self.draft.call_ms
        nodes, largest = draft_nodes(step), min(max(row) for row in self.draft.ms.values())
        if nodes > largest and step.draft_caught_up:
            nodes = max(1, round(step.draft_scored / step.draft_calls))
            reading = self.draft_reading_ms(step.draft_caught_up, context)
        reading += max(0, step.draft_forwards - step.draft_calls) * call_ms(1, context)
        return step.draft_calls * call_ms(nodes, context) + reading

    @cached_property
    def tables(self) -> dict[Any, Any]:
        """Tables that drafters have computed from these costs, shared by all of them."""
        return {}

    def host_of(self, decoder: str) -> float:
        """Return the milliseconds per step outside both models, for a decoder."""
        return self.host_ms.get(decoder, self.host_ms.get("", 0.0))

    def floor_ms(self, role: str, context: int) -> float | None:
        """Return the shortest possible time of a call of "target" or "draft" in milliseconds: bytes
        / copy bandwidth. None if either is unknown."""
        if role not in self.footprints or not self.copy_bytes_per_s:
            return None
        return 1e3 * self.footprints[role].call_bytes(context) / self.copy_bytes_per_s


class CostModel:
    """Predicts the times of samples from `costs`. `name` describes the costs in tables and titles,
    such as "the costs 'epyc'". Predictions are cached by sample."""

    def __init__(self, costs: Costs, name: str = "") -> None:
        self.costs, self.name = costs, name
        self._known: dict[Sample, list[tuple[float, float, int]]] = {}

    def steps(self, sample: Sample) -> list[tuple[float, float, int]]:
        """Return for each step (milliseconds in the target, milliseconds in the draft, context
        length), without prefill.

        Raises `ValueError` if a step is larger than the largest call of the costs.
        """
        if sample in self._known:
            return self._known[sample]
        call_ms, steps = self.costs.target.call_ms, []
        context, draft_has_read = sample.prompt_tokens, False
        for step in sample.steps:
            further = max(0, step.target_forwards - 1)  # as of a long prompt before branches
            verify = call_ms(step.scored, context) + further * call_ms(1, context)
            # The first draft call prefills the prompt; `predict` adds that.
            counted = step if draft_has_read else replace(step, draft_caught_up=0)
            draft_has_read = draft_has_read or step.draft_calls > 0
            steps.append((verify, self.costs.drafting_ms(counted, context), context))
            context += step.new
        self._known[sample] = steps
        return steps

    def predict(self, sample: Sample) -> Sample:
        """Return a copy of the sample with predicted seconds.

        The first step includes the target's prefill, `prefill_ms`. The first step with a draft call
        includes the draft's prefill: from `reading_ms` if measured, otherwise `prefill_ms` x
        `draft_ratio` x the share of the context that the draft read. Raises `ValueError` as
        `steps` does.
        """
        costs, records = self.costs, list[StepRecord]()
        prefill_ms = costs.prefill_ms
        if costs.prefill_tokens:
            prefill_ms *= sample.prompt_tokens / costs.prefill_tokens
        host_ms, unread = costs.host_of(sample.decoder), costs.draft is not None
        for step, (verify, drafting, context) in zip(sample.steps, self.steps(sample), strict=True):
            verify += 0.0 if records else prefill_ms
            if unread and step.draft_calls:
                unread, read = False, step.draft_caught_up + 1 if step.draft_caught_up else context
                if costs.reading_ms and costs.draft is not None:  # the first call included
                    reading = costs.draft_reading_ms(read, context)
                    drafting += max(0.0, reading - costs.draft.call_ms(1, context))
                else:
                    drafting += prefill_ms * (costs.draft_ratio(context) or 0.0) * read / context
            times = {"draft_s": drafting / 1e3, "verify_s": verify / 1e3, "host_s": host_ms / 1e3}
            records.append(replace(step, **times))
        spent = [record.draft_s + record.verify_s + record.host_s for record in records]
        ttft_s = spent[0] if spent else None
        return replace(sample, steps=tuple(records), wall_s=sum(spent), ttft_s=ttft_s)

    def cost(self, sample: Sample) -> float:
        """Return the cost of a sample's calls, in target calls of one node at the same context;
        greedy decoding costs 1 per token.

        Excludes prefill and host time. Raises `ValueError` as `steps` does.
        """
        call_ms = self.costs.target.call_ms
        return sum((verify + draft) / call_ms(1, at) for verify, draft, at in self.steps(sample))

    def why_not(self, samples: Sequence[Sample]) -> str | None:
        """Return why samples cannot be predicted; None if they can be, or if they come from another
        engine, which records no calls."""
        if not any(step.scored for sample in samples for step in sample.steps):
            return None
        try:
            for sample in samples:
                self.steps(sample)
        except ValueError as error:
            return str(error)
        return None


def draft_nodes(step: StepRecord) -> int:
    """Return the mean number of tokens fed per draft call of a step (nodes and uncached tokens)."""
    return max(1, round((step.draft_scored + step.draft_caught_up) / step.draft_calls))


def _spread(surfaces: Iterable[Surface]) -> float:
    """Return the relative spread of a cost measurement: the median, over all models, contexts and
    sizes, of (half the interquartile range) / (median time)."""
    return median(
        surface.spread_ms[context][nodes] / ms
        for surface in surfaces
        for context, row in surface.ms.items()
        for nodes, ms in row.items()
    )


def _means(pairs: Iterable[tuple[Any, float]]) -> dict:
    """Return each key's mean in milliseconds, given (key, seconds) pairs; sorted by key."""
    seconds: dict = defaultdict(list)
    for key, value in pairs:
        seconds[key].append(value)
    return {key: 1e3 * mean(seconds[key]) for key in sorted(seconds)}
