"""The scaling law: tokens per step against the logarithm of the nodes per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from ouroboros.bench.advice.scaling import Law, Width
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import decoder_marks, foot, head, new_figure


def scaling_law(
    widths: Sequence[Width], laws: Mapping[str, Law | None], *, measured: str
) -> Figure:
    """A point for each width of each decoder, and the line of those that have one. `measured` says
    on what."""
    names = list(dict.fromkeys(width.decoder for width in widths))
    marks = decoder_marks(names)
    with style.looks():
        figure = new_figure(4.6)
        axes = figure.add_subplot()
        for name in names:
            own = sorted((w.nodes, w.tokens) for w in widths if w.decoder == name)
            x, y = np.array(own).T
            law, mark = laws.get(name), marks[name]
            label = name
            if law is not None:
                ends = np.array([x.min(), x.max()])
                fitted = law.at_one + law.per_doubling * np.log2(ends)
                axes.plot(ends, fitted, color=mark.colour, linewidth=1, linestyle="dashed")
                label += f": {law.per_doubling:+.2f} a doubling, R² {law.r2:.2f}"
            axes.plot(x, y, mark.marker, color=mark.colour, label=label)
        axes.set_xscale("log", base=2)
        ticks = 2.0 ** np.arange(0, 1 + np.ceil(np.log2(max(w.nodes for w in widths))))
        axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        axes.set_xlabel("nodes scored per step (logarithmic)")
        axes.set_ylim(bottom=1)
        axes.set_ylabel("tokens per step")
        axes.grid(axis="y")
        axes.legend(loc="upper left")
        head(axes, "Step compression against work")
        foot(figure, f"{measured} Dashed: least squares. Greedy is 1 at 1 node.")
    return figure
