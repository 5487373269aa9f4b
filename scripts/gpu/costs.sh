#!/usr/bin/env bash
# Time calls of 1 to 256 nodes after 512 to 16k tokens: as configured, with tuned products and an int8
# draft, and in eager mode; also some kernels and the idle share.
source "$(dirname "$0")/common.sh"
SHAPES=$(shapes yi-34b yi-6b --context 16384) || exit 1
# positions beyond the pair's limit are only timed
RUN="model.dtype=bfloat16 +model.options.max_position_embeddings=20480"
CONTEXTS="512 2048 4096 8192 16384" SOME="512 4096"
if [ -n "${REHEARSE:-}" ]; then CONTEXTS="256 512" SOME="256"; fi
TIME="$PYTHON scripts/gpu/call_costs.py $RUN $SMALL $SHAPES $GRID"
step costs kernel_times.json "$PYTHON" scripts/gpu/kernel_times.py $RESULTS/costs \
  --shapes $(names "$SHAPES") $FLAGS
step costs static.json $TIME --nodes $NODES --contexts $CONTEXTS
step costs tuned.json $TIME model.engine=tuned draft_weights=int8 --nodes $NODES --contexts $SOME
step costs eager.json $TIME model.engine=eager --nodes 1 8 64 --contexts $SOME
finish
