"""Options for a GPU are chosen by calls measured on it."""

import pytest
from gains import options

from ouroboros.costs import Costs, Surface


def measured(target: float, draft: float) -> Costs:
    """Calls that take this share of the plain ones."""
    sizes = {1: 1.0, 64: 1.2}
    shares = ({nodes: share * ms for nodes, ms in sizes.items()} for share in (target, draft))
    return Costs(*map(Surface.flat, shares))


@pytest.mark.parametrize(
    ("target", "draft", "wanted"),
    [
        (0.95, 0.6, ["model.engine=tuned", "draft_weights=int8"]),
        (1.0, 0.6, ["draft_weights=int8"]),
        (0.95, 0.97, ["model.engine=tuned"]),
        (0.99, 1.3, []),
    ],
)
def test_what_is_clearly_faster_is_switched_on(target, draft, wanted, capsys):
    assert options(measured(1, 1), measured(target, draft)) == wanted
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["target", "64", "1.20", f"{1.2 * target:.2f}"] in lines
