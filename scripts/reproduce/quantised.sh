#!/usr/bin/env bash
# int8 weights of the draft, the target and both, in counts of the pair as it is. 8 runs of 1 minute.
source "$(dirname "$0")/common.sh"
for dtype in bfloat16 float32; do
  for int8 in none draft target both; do
    folder=quantised/${dtype/bfloat16/bf16}_$int8
    case $int8 in
      none) weights="" ;;
      both) weights="draft_weights=int8 target_weights=int8" ;;
      *) weights="${int8}_weights=int8" ;;
    esac
    begin $folder
    measure $folder bench "decoder=[greedy,speculative,lookahead,ouroboros,hf_assisted]" $COUNT \
      model.standin=null task.limit=10 task.stride=16 "task.stop=[]" max_new=64 \
      model.dtype=$dtype $weights
  done
done
finish
