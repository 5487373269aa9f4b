#!/usr/bin/env bash
# The advisor's predictions against timed runs, setting by setting. 10 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
begin advice_check
here=$RESULTS/advice_check
step advice_check advice/advice.json "$PYTHON" -m ouroboros advise search=false model.dtype=auto \
  results_dir=$here/advice
measure advice_check/runs bench experiment=advice_check &&
  step advice_check check.json "$PYTHON" scripts/reproduce/advice_check.py $here/runs \
    --costs $here/advice/costs.json --rates $here/advice/advice.json --out $here
finish
