#!/usr/bin/env bash
# Shared noise against rejection sampling, and the bound on both. 3 runs of 2 minutes.
source "$(dirname "$0")/common.sh"
for temperature in 0 0.7 1.0; do
  folder=acceptance/t${temperature/./}
  begin $folder
  measure $folder bench experiment=acceptance $COUNT temperature=$temperature max_new=64 &&
    step $folder overlap.json "$PYTHON" scripts/trials/overlap.py $RESULTS/$folder
done
finish
