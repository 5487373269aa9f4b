#!/usr/bin/env bash
# Calls and cost per token of the published policy and of Ouroboros. 6 minutes.
source "$(dirname "$0")/common.sh"
begin calls_per_token
measure calls_per_token bench experiment=calls_per_token $COUNT
finish
