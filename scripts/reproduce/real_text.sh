#!/usr/bin/env bash
# What a draft of each agreement is worth, on recorded answers of a real model. 12 minutes.
source "$(dirname "$0")/common.sh"
have recordings/specbench_vicuna-7b-v1.3.jsonl && begin real_text &&
  step real_text agreement.json "$PYTHON" -m ouroboros agreement --config-name real_text \
    recording=${DATA:-data}/recordings/specbench_vicuna-7b-v1.3.jsonl per_group=6 max_new=96 \
    threads=1 results_dir=$RESULTS/real_text
finish
