#!/usr/bin/env bash
# What the configured settings lose against the best found, by the costs of each machine. 2 hours.
source "$(dirname "$0")/common.sh"
tune() {
  begin tuning/$1
  step tuning/$1 tuning.json "$PYTHON" -m ouroboros tune --decoders $2 --limit 4 --first 2 \
    --max-new 48 --trials 12 --temperatures 0 0.8 --overrides threads=1 --results $RESULTS/tuning/$1
}
tune with_draft "speculative suffix_hybrid ouroboros"
tune without "prompt_lookup prompt_lookup_adaptive suffix_decoding racer token_recycling lookahead"
finish
