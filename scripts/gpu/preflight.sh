#!/usr/bin/env bash
# Check what every later stage needs: numba, the attention kernel, captured graphs, and a call of
# one node close to its bandwidth floor. If it fails, fix that first.
LIMIT_S=${LIMIT_S:-360}
source "$(dirname "$0")/common.sh"
SHAPES=$(shapes yi-34b yi-6b) || exit 1
step preflight numba "$PYTHON" -c \
  "from ouroboros.drafters.draft_tree.tree_grower import warm_up_jit; warm_up_jit()" || finish
step preflight attention "$PYTHON" -m pytest -p no:cacheprovider -k equals_torchs_own_attention \
  tests/engine/test_triton.py || finish
step preflight done "$PYTHON" scripts/gpu/checks.py preflight $RESULTS/preflight \
  --shapes $(names "$SHAPES") $FLAGS
finish
