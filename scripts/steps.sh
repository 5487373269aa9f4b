# Run measurements step by step: skip finished steps, resume interrupted ones, list failed ones and
# continue with the rest. The scripts in reproduce/ and gpu/ source this file.
#
#   measure FOLDER bench task.limit=8     one `ouroboros` command that writes results into FOLDER
#   step FOLDER FILE command ...          any command; skipped if FILE is in FOLDER
#   finish                                list the failed steps; exit 1 if there are any
#
# Folders are below RESULTS. Ctrl-C (or SIGTERM) keeps all finished samples: rerun to resume.
#   DRY=1          print the commands and run nothing
#   EXTRA="..."    options added to every `measure`, as "task.limit=1 max_new=4" for a quick trial;
#                  give RESULTS=results/local/trial as well
#   LIMIT_S=540    seconds that the script may take; then it ends as if interrupted

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
RESULTS=${RESULTS:-results}
LOGS=${LOGS:-results/local/logs}
FAILED=()

measure() {
  local folder=$RESULTS/$1
  shift
  # shellcheck disable=SC2086
  if [ -z "${DRY:-}" ] && grep -qs '"status": "finished"' "$folder/run.json"; then
    if [ "$1" = bench ] && [ ! -e "$folder/summary.md" ]; then # killed before its report
      run "$folder" summary.md "$PYTHON" -m ouroboros report "$folder" remake=true
    elif [[ " $* " = *" audit=all "* ]] && [ ! -e "$folder/audit.jsonl" ]; then # killed in its audit
      run "$folder" audit.jsonl "$PYTHON" -m ouroboros audit "$folder"
    else
      say "$folder" "finished before"
    fi
  else
    run "$folder" "" "$PYTHON" -m ouroboros "$@" "results_dir=$folder" ${EXTRA:-}
  fi
}

step() {
  local folder=$RESULTS/$1 file=$2
  shift 2
  if [ -z "${DRY:-}" ] && [ -e "$folder/$file" ]; then
    say "$folder/$file" "finished before"
  else
    run "$folder" "$file" "$@"
  fi
}

# run FOLDER FILE COMMAND...: run and report; stdout goes to a log
run() {
  local folder=$1 file=$2 log code
  shift 2
  if [ -n "${DRY:-}" ]; then
    echo "$*"
    return
  fi
  mkdir -p "$folder" "$LOGS"
  log=$LOGS/$(echo "$folder/$file" | tr -cs 'A-Za-z0-9.\n' -).log
  say "$folder" "${file:-run} begins"
  if [ -n "${LIMIT_S:-}" ]; then
    set -- timeout --preserve-status --kill-after=25 "$((LIMIT_S - SECONDS > 1 ? LIMIT_S - SECONDS : 1))" "$@"
  fi
  "$@" 2>&1 >"$log" | tee -i "$log.stderr" >&2
  code=${PIPESTATUS[0]}
  # killed 25 s after the time limit, while it wrote its report
  if [ "$code" = 137 ] && [ "$SECONDS" -ge "${LIMIT_S:-$((SECONDS + 1))}" ]; then code=130; fi
  case $code in
    0)
      # A FILE that the command does not write: the last line of stdout (JSON), or empty.
      if [ -n "$file" ] && [ ! -e "$folder/$file" ]; then
        if [ "${file##*.}" = json ]; then tail -n 1 "$log"; fi >"$folder/$file"
      fi
      say "$folder" "${file:-run} done"
      ;;
    130 | 143)
      say "$folder" "interrupted: rerun to resume"
      exit 130
      ;;
    *)
      say "$folder" "FAILED with exit code $code: $(tail -n 1 "$log.stderr")"
      FAILED+=("$folder/$file")
      return "$code"
      ;;
  esac
}

finish() {
  if [ ${#FAILED[@]} -gt 0 ]; then
    echo "failed: ${FAILED[*]}" >&2
    exit 1
  fi
}

say() {
  [ -n "${DRY:-}" ] || echo "$(date +%H:%M:%S) $1: $2" >&2
}
