#!/usr/bin/env bash
# The headline at the temperature where text repeats itself as real models' text does, timed, three repeats. 25 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
begin main_matched
measure main_matched bench experiment=cpu_float32 temperature=matched task.limit=20 task.stride=8 repeats=3
finish
