#!/usr/bin/env bash
# Ouroboros without one part after the other, in cost per token. 2 runs of 4 minutes.
source "$(dirname "$0")/common.sh"
for temperature in 0 0.8; do
  begin ablation/t${temperature/./}
  measure ablation/t${temperature/./} bench experiment=ablation $COUNT $AS_IS temperature=$temperature
done
finish
