#!/usr/bin/env bash
# Measure many settings of the decoders in one run; compare each with the advisor's prediction.
source "$(dirname "$0")/common.sh"
SHAPES=$(shapes yi-34b yi-6b) || exit 1
COSTS=$RESULTS/sweep/costs/costs.json
measure sweep/costs profile "decoder=[greedy,speculative]" "$SHAPES" model.dtype=bfloat16 task.limit=1 \
  max_new=16 profile.nodes=$NODES "profile.contexts=[128,256,512]" $GRID $SMALL
measure sweep/runs bench experiment=gpu_sweep costs=$COSTS $SMALL "$SHAPES" &&
  step sweep/advice check.json "$PYTHON" scripts/reproduce/advice_check.py $RESULTS/sweep/runs \
    --costs $COSTS --out $RESULTS/sweep/advice
finish
