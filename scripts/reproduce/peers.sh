#!/usr/bin/env bash
# transformers' own generation in all its modes, timed. 8 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
begin peers
measure peers bench experiment=peers
finish
