#!/usr/bin/env bash
# Where the time goes. 3 minutes on a quiet machine. (costs/epyc.yaml is made of results/profile.)
source "$(dirname "$0")/common.sh"
begin step_profile
measure step_profile profile profile.trace=true model.dtype=auto
finish
