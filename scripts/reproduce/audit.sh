#!/usr/bin/env bash
# Nine decoders audited against plain decoding, greedy and sampled. 4 minutes a run.
source "$(dirname "$0")/common.sh"
for temperature in 0 0.7 1.0; do
  for dtype in float32 bfloat16; do
    folder=audit/t${temperature//./}_${dtype/bfloat16/bf16}
    begin $folder
    measure $folder bench experiment=audit $COUNT temperature=$temperature model.dtype=$dtype \
      task.stride=8 max_new=64 &&
      step $folder audit.md "$PYTHON" -m ouroboros audit $RESULTS/$folder
  done
done
finish
