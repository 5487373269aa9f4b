#!/usr/bin/env bash
# Measure the headline: SmolLM2 as a stand-in of Yi 34B on 10 HumanEval prompts, all decoders in turn, at T = 0.8 and
# at T = 0, in one process. `headline.sh` has the draft in the size of Yi 6B, `headline.sh distilled` as `ouroboros
# distill` would make it from Yi 34B.
PAIR=${1:-pair}
STAGE=headline_$PAIR
source "$(dirname "$0")/common.sh"
case $PAIR in
  pair) DRAFT=yi-6b EXPERIMENT=gpu_headline ;;
  distilled) DRAFT=yi-34b@8 EXPERIMENT=gpu_distilled ;;
  *) echo "$PAIR: choose pair or distilled" >&2; exit 2 ;;
esac
SHAPES=$(shapes yi-34b $DRAFT) || exit 1
step $STAGE done.json "$PYTHON" -m ouroboros bench --multirun experiment=$EXPERIMENT temperature=0.8,0 $SMALL \
  "$SHAPES" "results_dir=$RESULTS/$STAGE" ${EXTRA:-}
finish
