#!/usr/bin/env bash
# What a draft of each agreement is worth, on recorded answers of a real model. 12 minutes.
source "$(dirname "$0")/common.sh"
have recordings/specbench_vicuna-7b-v1.3.jsonl && begin real_text &&
  step real_text agreement.json "$PYTHON" scripts/reproduce/agreement.py --real-text \
    ${DATA:-data}/recordings/specbench_vicuna-7b-v1.3.jsonl --per-group 6 --max-new 96 \
    --out $RESULTS/real_text
finish
