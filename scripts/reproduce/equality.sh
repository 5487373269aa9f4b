#!/usr/bin/env bash
# Equal text: seven decoders on 164 prompts, float32. 15 minutes.
source "$(dirname "$0")/common.sh"
begin equality
measure equality bench experiment=equality $COUNT max_new=64
finish
