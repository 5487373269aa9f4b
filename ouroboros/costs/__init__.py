"""Call costs: milliseconds by nodes and context length, and run times predicted from them."""

from ouroboros.costs.costs import NAMES, NOISY, UNTIMED, CostModel, Costs
from ouroboros.costs.surface import Footprint, Surface

__all__ = ["NAMES", "NOISY", "UNTIMED", "CostModel", "Costs", "Footprint", "Surface"]
