"""What calls cost on a machine: milliseconds by nodes and context, and what bounds them.

With it, counts alone predict the time of a decoder on a machine that it never ran on. Invariant:
nothing is extrapolated; a call larger than any that was measured is an error. A `Surface` is
measured; a small table by hand, or the samples of a timed run, will do as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import yaml

from ouroboros.trace import StepRecord

Table = Mapping[float, Mapping[float, float]]
BY_HAND = ("verify_ms", "draft_ms", "host_ms", "prefill_ms", "about")


@dataclass(frozen=True)
class Surface:
    """Milliseconds of one call of a model, from its start to the arrival of its choices.

    `ms[context][nodes]`: `context` counts the tokens of the sequence, the root included, and
    `nodes` those of the tree that is scored. A context of `inf` says that the cost is the same at
    every context. `padded` is for engines that fill a tree up to the next of a few sizes: a call
    costs what the next size measured costs, instead of something in between. `spread_ms`, where it
    is known, is half the distance between the quartiles, laid out as `ms`.

    >>> Surface({100: {1: 10.0, 9: 18.0}, 300: {1: 12.0, 9: 20.0}}).call_ms(5, 200)
    15.0
    """

    ms: Table
    padded: bool = False
    spread_ms: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("ms", "spread_ms"):
            object.__setattr__(self, name, _numbers(getattr(self, name)))
        if not self.ms or not all(self.ms.values()):
            raise ValueError("no milliseconds are given: give some for one node at least")
        if len(self.ms) > 1 and math.inf in self.ms:
            raise ValueError("a surface for every context (inf) can have no other context")

    @classmethod
    def flat(cls, ms: Mapping[float, float]) -> Surface:
        """Return {nodes: ms} as a surface that is the same at every context."""
        return cls({math.inf: ms})

    @classmethod
    def constant(cls, ms: float) -> Surface:
        """Return the surface of calls that all cost the same."""
        return cls({math.inf: {math.inf: ms}}, padded=True)

    def call_ms(self, nodes: float, context: float) -> float:
        """Return the milliseconds of one call, bilinear between what was measured.

        A context below the smallest measured costs what that costs. Raises `ValueError` beyond what
        was measured.
        """
        return float(self.calls_ms([nodes], context)[0])

    def calls_ms(self, nodes: Sequence[float], context: float) -> np.ndarray:
        """Return the milliseconds of calls of ascending sizes; see `call_ms`."""
        contexts = list(self.ms)
        if context > contexts[-1]:
            raise ValueError(
                f"the sequence has {context:.0f} tokens, the costs cover up to {contexts[-1]:.0f}: "
                "measure at a longer context"
            )
        above = next(c for c in contexts if c >= context)
        below = max((c for c in contexts if c <= context), default=above)
        high = self._at(above, nodes)
        if above == below:
            return high
        low = self._at(below, nodes)
        return low + (high - low) * ((context - below) / (above - below))

    def _at(self, context: float, nodes: Sequence[float]) -> np.ndarray:
        """The milliseconds at a measured context."""
        sizes, ms = list(self.ms[context]), np.array(list(self.ms[context].values()))
        if nodes[-1] > sizes[-1] or (nodes[0] < sizes[0] and not self.padded):
            outside = nodes[0] if nodes[0] < sizes[0] else nodes[-1]
            raise ValueError(
                f"a call scores {outside:.0f} nodes, the costs cover {sizes[0]:.0f} to "
                f"{sizes[-1]:.0f}: measure trees of more sizes"
            )
        if self.padded:
            return ms[np.searchsorted(sizes, nodes)]
        return np.interp(nodes, sizes, ms)


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model: `weight_bytes` held, `read_bytes` of them read in each call (an embedding
    table is not: only a few of its rows are), and of each cached token's keys and values."""

    weight_bytes: int
    read_bytes: int
    kv_bytes_per_token: int

    def call_bytes(self, context: int) -> int:
        """Return the bytes that any call must read, however few nodes it scores."""
        return self.read_bytes + context * self.kv_bytes_per_token


@dataclass(frozen=True)
class Costs:
    """A pair of models on a machine.

    `host_ms`: milliseconds per step outside of both models, by decoder; "" is for any other one.
    `prefill_ms` comes on top of a run's first step. `footprints` has "target" and "draft".
    `copy_bytes_per_s` counts bytes read plus bytes written. `about` says in plain values what was
    measured: models, machine, dtype, threads.
    """

    target: Surface
    draft: Surface | None = None
    host_ms: Mapping[str, float] = field(default_factory=dict)
    prefill_ms: float = 0.0
    footprints: Mapping[str, Footprint] = field(default_factory=dict)
    copy_bytes_per_s: float | None = None
    about: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of_pair(cls, surfaces: Sequence[Surface]) -> Costs:
        """Return the costs of a target's surface and, where there is a second one, a draft's."""
        return cls(surfaces[0], surfaces[1] if len(surfaces) > 1 else None)

    def step_ms(self, step: StepRecord, context: int, *, decoder: str = "") -> float:
        """Return the milliseconds of one step on a sequence of `context` tokens.

        Draft calls are taken as equally large; text that the draft takes in after a long pause, if
        no tree measured is so large, as calls of the largest. Raises `ValueError` beyond what was
        measured, and for a step that drafted where no draft was.
        """
        drafting = 0.0
        if step.draft_calls:
            if self.draft is None:
                raise ValueError(
                    "the costs have no draft model: measure the pair, or give draft_ms"
                )
            drafting = self._drafting_ms(step, self.draft, context)
        host = self.host_ms.get(decoder, self.host_ms.get("", 0.0))
        return self.target.call_ms(step.scored, context) + drafting + host

    @staticmethod
    def _drafting_ms(step: StepRecord, draft: Surface, context: int) -> float:
        """The milliseconds of a step's draft calls."""
        nodes, largest = draft_nodes(step), min(max(row) for row in draft.ms.values())
        if nodes <= largest or not step.draft_caught_up:
            return step.draft_calls * draft.call_ms(nodes, context)
        own = max(1, round(step.draft_scored / step.draft_calls))
        whole, rest = divmod(step.draft_caught_up, largest)
        read = whole * draft.call_ms(largest, context) + (rest and draft.call_ms(rest, context))
        return step.draft_calls * draft.call_ms(own, context) + read

    def floor_ms(self, role: str, context: int) -> float | None:
        """Return the least milliseconds of a call of "target" or "draft": the bytes that it must
        read, at the machine's copy bandwidth. None where either is not known."""
        if role not in self.footprints or not self.copy_bytes_per_s:
            return None
        return 1e3 * self.footprints[role].call_bytes(context) / self.copy_bytes_per_s

    def save(self, path: Path) -> None:
        """Write JSON, which `load` reads."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Costs:
        """Read what `save` wrote, or a small table by hand, in YAML or JSON:
        {verify_ms: {1: 14.8, 8: 15.6, 64: 21.0}, draft_ms: 2.9, host_ms: 1, prefill_ms: 30}.

        Raises `ValueError` for anything else.
        """
        try:
            values = _read(path.read_text(encoding="utf-8"))
            return cls.by_hand(values) if "verify_ms" in values else _saved(values)
        except (OSError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"cannot read the costs {path}: {reason}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} holds no costs: give verify_ms (nodes: milliseconds) and, if known, "
                "draft_ms, host_ms, prefill_ms; or a costs.json that was measured"
            ) from error

    @classmethod
    def by_hand(cls, values: Mapping) -> Costs:
        """Return the costs of a small table: `verify_ms` by nodes, the same at every context, and
        perhaps `draft_ms` (one number, or by nodes), `host_ms`, `prefill_ms`, and `about`, what
        they are.

        Raises `ValueError` for other options.
        """
        if set(values) - set(BY_HAND):
            raise ValueError(f"options are {', '.join(BY_HAND)}")
        draft, host = values.get("draft_ms"), values.get("host_ms")
        if draft is not None:
            by_nodes = isinstance(draft, Mapping)
            draft = Surface.flat(draft) if by_nodes else Surface.constant(float(draft))
        return cls(
            Surface.flat(values["verify_ms"]),
            draft,
            {} if host is None else {"": float(host)},
            float(values.get("prefill_ms", 0.0)),
            about=values.get("about", {}),
        )


def draft_nodes(step: StepRecord) -> int:
    """Return the tokens of one of the step's draft calls, on average: nodes, and what of the
    sequence it took in besides."""
    return max(1, round((step.draft_scored + step.draft_caught_up) / step.draft_calls))


def _numbers(table: Mapping) -> dict[float, dict[float, float]]:
    """Return a table with numbers for keys, ascending (JSON's keys are text)."""
    rows = {
        _number(c): {_number(n): float(ms) for n, ms in row.items()} for c, row in table.items()
    }
    return {context: dict(sorted(rows[context].items())) for context in sorted(rows)}


def _number(key: str | float) -> float:
    value = float(key)
    return int(value) if value.is_integer() else value


def _read(text: str):
    """JSON or YAML; for YAML's reader a number written 1e-05, as JSON does, would be a text."""
    try:
        return json.loads(text)
    except ValueError:
        return yaml.safe_load(text)


def _saved(values: dict) -> Costs:
    draft = values["draft"] and Surface(**values["draft"])
    footprints = {role: Footprint(**own) for role, own in values["footprints"].items()}
    own = {"target": Surface(**values["target"]), "draft": draft, "footprints": footprints}
    return Costs(**{**values, **own})
