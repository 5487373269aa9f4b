"""The scaling law: tokens per step against the logarithm of the nodes per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import decoder_marks, foot, head, new_figure
from ouroboros.tuning.scaling import Law, Width


def scaling_law(
    widths: Sequence[Width], laws: Mapping[str, Law | None], *, measured: str
) -> Figure:
    """A panel for each decoder: a point for each width, and the line where there is one. `measured`
    says on what."""
    names = list(dict.fromkeys(width.decoder for width in widths))
    marks = decoder_marks(names)
    with style.looks():
        figure = new_figure(4.2)
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            x, y = np.array(sorted((w.nodes, w.tokens) for w in widths if w.decoder == name)).T
            _panel(axes, x, y, laws.get(name), marks[name])
            law = laws.get(name)
            line = "" if law is None else f"{law.per_doubling:+.2f} a doubling, R² {law.r2:.2f}"
            head(axes, f"{name}: {line}")
        panels[0].set_ylabel("tokens per step")
        foot(figure, f"{measured} Dashed: least squares. Greedy has 1 token of 1 node.")
    return figure


def _panel(axes: Axes, x: np.ndarray, y: np.ndarray, law: Law | None, mark: style.Mark) -> None:
    if law is not None:
        ends = np.array([x.min(), x.max()])
        fitted = law.at_one + law.per_doubling * np.log2(ends)
        axes.plot(ends, fitted, color=mark.colour, linewidth=1, linestyle="dashed")
    axes.plot(x, y, mark.marker, color=mark.colour)
    axes.set_xscale("log", base=2)
    ticks = 2.0 ** np.arange(0, 1 + np.ceil(np.log2(x.max())))
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.set_xlabel("nodes scored per step (logarithmic)")
    axes.set_ylim(0, 1.08 * y.max())
    axes.grid(axis="y")
