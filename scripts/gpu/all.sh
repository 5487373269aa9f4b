#!/usr/bin/env bash
# Run every stage, the most important first; list failed stages at the end. Stop after a failed
# preflight, unless only `floor` failed: costs.sh shows why calls are slow.
cd "$(dirname "$0")/../.." || exit 1
CHECKS=${RESULTS:-results/local/gpu${REHEARSE:+_rehearsal}}/preflight/checks.json
only_floor() { # the one check that failed is `floor`
  [ "$(grep -sB1 '"passed": false' "$CHECKS" | grep -o '"name": .*"')" = '"name": "floor"' ]
}
failed=()
for stage in preflight "headline distilled" headline costs correct pairs; do
  set -- $stage
  bash scripts/gpu/$1.sh ${@:2}
  case $? in
    0) ;;
    130) exit 130 ;;
    *) failed+=("$stage") ;;
  esac
  if [ "${failed[*]}" = preflight ] && [ $1 = preflight ] && ! only_floor; then
    echo "preflight failed: mend what is named above, then run this again" >&2
    exit 1
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
