#!/usr/bin/env bash
# Decoders inside the lm-evaluation-harness: equal scores, each at its speed. 3 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
begin lm_eval
step lm_eval ouroboros.json "$PYTHON" scripts/reproduce/lm_eval_task.py $RESULTS/lm_eval
finish
