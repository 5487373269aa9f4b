#!/usr/bin/env bash
# Every stage, the most important first; one that fails is named at the end and the others run.
cd "$(dirname "$0")" || exit 1
failed=()
for stage in preflight "headline 0.8" costs "headline 0.8 gains" headline "headline 0 gains" correct sweep pairs; do
  set -- $stage
  bash $1.sh ${@:2}
  case $? in
    0) ;;
    130) exit 130 ;;
    *) failed+=("$stage") ;;
  esac
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
