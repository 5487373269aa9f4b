#!/usr/bin/env bash
# Everything that README and docs quote: scripts that count, then those that are timed. About ten
# hours on two cores. Finished results are skipped, interrupted ones resume, a failed script is named
# at the end and the others run.
cd "$(dirname "$0")" || exit 1
failed=()
for name in equality audit calls_per_token drafters_epyc drafters_flat ablation warm_start \
  acceptance agreement real_text tuning quantised \
  main_matched main_t0 main_t08 peers tasks context_length advice_check step_profile host lm_eval; do
  bash $name.sh
  case $? in
    0) ;;
    130) exit 130 ;;
    *) failed+=("$name") ;;
  esac
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
