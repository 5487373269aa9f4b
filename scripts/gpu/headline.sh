#!/usr/bin/env bash
# Measure the headline: stand-ins of Yi 34B / 6B on 14 prompts. Greedy, Ouroboros and transformers'
# greedy run first, so that these are complete if time runs out; then every decoder. Goals are only
# judged if texts equal greedy's up to ties. `headline.sh 0.8` runs at T = 0.8, else T = 0;
# `headline.sh 0.8 gains` uses the options that costs.sh found to be faster.
TEMPERATURE=${1:-0} GAINS=${2:-}
STAGE=headline_t${TEMPERATURE/./}${GAINS:+_gains} ALSO=headline_costs${GAINS:+_gains}
source "$(dirname "$0")/common.sh"
if [ -n "$GAINS" ]; then
  GAINS=$(cat $RESULTS/costs/gains.txt) || {
    echo "no $RESULTS/costs/gains.txt: run costs.sh first, or put its archive into build/gpu" >&2
    [ -n "${DRY:-}" ] # exit code 1, unless commands are only printed
    exit
  }
  [ -n "$GAINS" ] || { say $STAGE "costs.sh found no gain: nothing to run"; exit 0; }
fi
SHAPES=$(shapes yi-34b yi-6b) || exit 1
COSTS=$RESULTS/$ALSO/costs.json
measure $ALSO profile "decoder=[greedy,speculative]" "$SHAPES" model.dtype=bfloat16 $GAINS \
  task.limit=1 max_new=16 profile.nodes=$NODES "profile.contexts=[256,512,1024]" $GRID $SMALL
for part in pairs all; do
  measure $STAGE/$part bench experiment=gpu_headline_$part temperature=$TEMPERATURE costs=$COSTS \
    $GAINS $SMALL "$SHAPES" &&
    step $STAGE/$part equal "$PYTHON" scripts/gpu/checks.py equal $RESULTS/$STAGE/$part &&
    step $STAGE/$part goals.md "$PYTHON" scripts/gpu/goals.py $RESULTS/$STAGE/$part \
      ${REHEARSE:+--rehearsal}
done
finish
