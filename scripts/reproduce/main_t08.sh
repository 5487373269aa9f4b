#!/usr/bin/env bash
# The headline at T = 0.8, timed, three repeats. 27 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
begin main_t08
measure main_t08 bench experiment=cpu_float32 temperature=0.8 task.limit=20 task.stride=8 repeats=3
finish
