"""The weights of the two estimates, as data: numbers by feature, and what they were fitted on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from ouroboros.drafters.draft_tree.estimate import DRAFT, INDEX

FORMAT = "ouroboros-estimates-2"


@dataclass(frozen=True)
class Weights:
    """Weights of the estimate without the draft's view and with it, in the order of
    `estimate.INDEX` and `estimate.DRAFT`; `about` says in plain values what they were fitted on
    and how well they predict."""

    index: tuple[float, ...]
    draft: tuple[float, ...]
    about: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.index) != len(INDEX) or len(self.draft) != len(DRAFT):
            raise ValueError(
                f"{len(self.index)} and {len(self.draft)} weights for {len(INDEX)} and "
                f"{len(DRAFT)} features: fit them anew"
            )

    def save(self, path: str | Path) -> None:
        """Write JSON, which `load` reads."""
        content = {
            "format": FORMAT,
            "index": dict(zip(INDEX, self.index, strict=True)),
            "draft": dict(zip(DRAFT, self.draft, strict=True)),
            "about": self.about,
        }
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path | None = None) -> Weights:
        """Read a file, by default the shipped one. Raises `ValueError` for what is none."""
        where = files(__package__) / "weights.json" if path is None else Path(path)
        try:
            content = json.loads(where.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise KeyError("format")
            index = _in_order(content["index"], INDEX)
            return cls(index, _in_order(content["draft"], DRAFT), content["about"])
        except OSError as error:
            raise ValueError(f"cannot read the weights {where}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{where} holds no weights of this version ({error}): fit them anew, or leave "
                "weights out for the shipped ones"
            ) from error


def _in_order(weights: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    if set(weights) != set(names):
        raise KeyError(f"features {sorted(set(weights) ^ set(names))}")
    return tuple(float(weights[name]) for name in names)
