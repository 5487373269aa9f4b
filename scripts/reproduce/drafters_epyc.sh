#!/usr/bin/env bash
# Every drafter, counted by the costs of a few CPU cores. 12 runs of 5 minutes.
source "$(dirname "$0")/common.sh"
both_temperatures() {
  for temperature in 0 0.8; do
    begin drafters_epyc/$1_t${temperature/./}
    measure drafters_epyc/$1_t${temperature/./} bench experiment=drafters_epyc $2 temperature=$temperature
  done
}
for_each_task both_temperatures
finish
