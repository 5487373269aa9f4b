"""Call costs as data: milliseconds by nodes and context, and the run times that they predict."""

from ouroboros.costs.costs import NAMES, NOISY, UNTIMED, CostModel, Costs
from ouroboros.costs.surface import Footprint, Surface

__all__ = ["NAMES", "NOISY", "UNTIMED", "CostModel", "Costs", "Footprint", "Surface"]
