#!/usr/bin/env bash
# The host's time per step. 2 minutes on a quiet machine.
source "$(dirname "$0")/common.sh"
begin host
step host host.json "$PYTHON" scripts/trials/host_overhead.py
finish
