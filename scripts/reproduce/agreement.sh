#!/usr/bin/env bash
# What a draft of each agreement is worth, on the reference pair's own text. 10 minutes.
source "$(dirname "$0")/common.sh"
begin agreement
measure agreement/recorded bench "decoder=[greedy]" $COUNT $AS_IS task.limit=41 task.stride=4 &&
  step agreement agreement.json "$PYTHON" scripts/reproduce/agreement.py \
    $RESULTS/agreement/recorded --out $RESULTS/agreement
finish
