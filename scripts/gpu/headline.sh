#!/usr/bin/env bash
# The published headline's shapes, Yi 34B / 6B, alternated on 14 prompts: greedy, Ouroboros and
# transformers' greedy first, so that these have pairs if time runs out; then every decoder. Texts must
# be greedy's up to ties before goals are judged. 9 minutes each for T = 0 (headline.sh) and T = 0.8
# (headline.sh 0.8).
TEMPERATURE=${1:-0}
STAGE=headline_t${TEMPERATURE/./} ALSO=headline_costs
source "$(dirname "$0")/common.sh"
SHAPES=$(shapes yi-34b yi-6b) || exit 1
COSTS=$RESULTS/headline_costs/costs.json
measure headline_costs profile "decoder=[greedy,speculative]" "$SHAPES" model.dtype=bfloat16 \
  task.limit=1 max_new=16 profile.nodes=$NODES "profile.contexts=[256,512,1024]" $GRID $SMALL
for part in pairs all; do
  measure $STAGE/$part bench experiment=gpu_headline_$part temperature=$TEMPERATURE costs=$COSTS \
    $SMALL "$SHAPES" &&
    step $STAGE/$part equal "$PYTHON" scripts/gpu/checks.py equal $RESULTS/$STAGE/$part &&
    step $STAGE/$part goals.md "$PYTHON" scripts/gpu/goals.py $RESULTS/$STAGE/$part --costs $COSTS \
      --idle $RESULTS/costs/kernel_times.json ${REHEARSE:+--rehearsal}
done
finish
