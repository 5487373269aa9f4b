#!/usr/bin/env bash
# The published headline's shapes, Yi 34B / 6B: every decoder, transformers' own too, alternated, with
# its goals. 9 minutes each for T = 0 (headline.sh) and T = 0.8 (headline.sh 0.8).
TEMPERATURE=${1:-0}
STAGE=headline_t${TEMPERATURE/./}
source "$(dirname "$0")/common.sh"
SHAPES=$(shapes yi-34b yi-6b) || exit 1
COSTS=$RESULTS/headline_costs/costs.json
measure headline_costs profile "decoder=[greedy,speculative]" "$SHAPES" model.dtype=bfloat16 \
  task.limit=1 max_new=16 profile.nodes=$NODES "profile.contexts=[256,512,1024]" $GRID $SMALL
measure $STAGE bench experiment=gpu_headline temperature=$TEMPERATURE task.limit=14 task.stride=11 \
  costs=$COSTS $SMALL "$SHAPES" &&
  step $STAGE goals.md "$PYTHON" scripts/gpu/goals.py $RESULTS/$STAGE --costs $COSTS \
    --idle $RESULTS/costs/kernel_times.json ${REHEARSE:+--rehearsal}
finish
