#!/usr/bin/env bash
# Measure the headline: stand-ins of Yi 34B / 6B on 14 prompts, all decoders in turn. `headline.sh 0.8` runs at
# T = 0.8, else T = 0; `headline.sh 0.8 gains` uses the options that costs.sh found to be faster. If time runs
# out, every decoder has the same prompts. Goals are only judged if texts equal greedy's up to ties.
TEMPERATURE=${1:-0} GAINS=${2:-}
STAGE=headline_t${TEMPERATURE/./}${GAINS:+_gains}
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
measure $STAGE/run bench experiment=gpu_headline temperature=$TEMPERATURE $GAINS $SMALL "$SHAPES" &&
  step $STAGE/run equal.json "$PYTHON" scripts/gpu/checks.py equal $RESULTS/$STAGE/run &&
  step $STAGE/run goals.md "$PYTHON" scripts/gpu/goals.py $RESULTS/$STAGE/run ${REHEARSE:+--rehearsal}
finish
