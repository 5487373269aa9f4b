#!/usr/bin/env bash
# Phrases carried over a task, in three orders of its prompts. 3 runs of 3 minutes.
source "$(dirname "$0")/common.sh"
for order in null 1 2; do
  folder=warm_start/shuffled_$order
  folder=${folder/shuffled_null/in_order}
  begin $folder
  measure $folder bench experiment=warm_start $COUNT $AS_IS hydra.mode=RUN task.shuffle=$order
done
finish
