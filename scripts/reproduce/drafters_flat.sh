#!/usr/bin/env bash
# Every drafter, counted by the costs of a GPU, where 64 nodes cost what one does. 12 runs of 5 minutes.
source "$(dirname "$0")/common.sh"
both_temperatures() {
  for temperature in 0 0.8; do
    begin drafters_flat/$1_t${temperature/./}
    measure drafters_flat/$1_t${temperature/./} bench experiment=drafters_flat $2 temperature=$temperature
  done
}
for_each_task both_temperatures
finish
