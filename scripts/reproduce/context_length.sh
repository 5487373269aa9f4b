#!/usr/bin/env bash
# Prompts of 512, 2k and 8k tokens, timed. 3 runs of 3 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
for length in 512 2048 8192; do
  begin context_length/c$length
  measure context_length/c$length bench experiment=context_length hydra.mode=RUN \
    context_tokens=$length task.limit=3 task.stride=50 audit=none
done
finish
