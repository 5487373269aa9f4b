#!/usr/bin/env bash
# Every task, timed. 6 runs of 3 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
timed() {
  begin tasks/$1
  measure tasks/$1 bench $2 task.limit=10 max_new=48 model.dtype=auto
}
for_each_task timed
finish
