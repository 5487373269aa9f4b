#!/usr/bin/env bash
# The headline, greedy, timed, three repeats. 20 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
begin main_t0
measure main_t0 bench experiment=cpu_float32 task.limit=20 task.stride=8 repeats=3
finish
