"""Time a pair's calls by tree size and context length; print the costs as JSON.

    python scripts/gpu/call_costs.py model=yi-34b-6b --nodes 1 8 64 --contexts 512 4096 > costs.json

The other arguments are those of `ouroboros bench`. `costs=costs.json` reads the file.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from ouroboros.bench.run.identity import provenance, without_paths
from ouroboros.bench.run.pair import load_pair
from ouroboros.cli.common import composed
from ouroboros.costs import Costs


def main(argv: Sequence[str] | None = None) -> None:
    """Load the pair, time its calls, and print the costs as one line of JSON."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--visits", type=int, default=3, help="rounds over all contexts")
    parser.add_argument("--repeats", type=int, default=2, help="calls per size in a round")
    options, overrides = parser.parse_known_args(argv)
    config = composed(overrides)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    pair = load_pair(config.model, with_draft=config.model.draft is not None)
    costs = Costs.measure_grid(pair.models, **vars(options))
    model = {name: getattr(config.model, name) for name in ("target", "draft", "standin")}
    about = without_paths({"model": model, **provenance()})
    print(json.dumps(asdict(replace(costs, about=about))))


if __name__ == "__main__":
    main()
