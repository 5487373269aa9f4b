# What the scripts in this folder share. One script per published figure of README and docs:
#
#   bash scripts/reproduce/main_t0.sh              one of them
#   DATA=/my/data bash scripts/reproduce/all.sh    all; DATA holds local copies of the benchmarks
#   make figures                                   then write the tables of README and docs
#
# The minutes in each script are for two CPU cores. Timed scripts need a quiet machine; those that
# only count may run beside each other, each on one thread. Results that an older version of the code
# has made are moved to results/local/before and measured again.

source "$(dirname "${BASH_SOURCE[0]}")/../steps.sh"
COUNT="timing=false threads=1"
AS_IS="model.standin=null model.dtype=float32"

# begin FOLDER: set results of older code aside; write down how new ones are made.
begin() {
  [ -n "${DRY:-}" ] || "$PYTHON" scripts/reproduce/figures.py --begin "$RESULTS/$1"
}

# have FILE: whether DATA holds a benchmark's file; says so if not.
have() {
  [ -n "${DRY:-}" ] || [ -e "${DATA:-}/$1" ] || {
    say "$1" "skipped: not in DATA=${DATA:-(unset)}"
    return 1
  }
}

# for_each_task FUNCTION: call FUNCTION with each task's name and options.
for_each_task() {
  local data=${DATA:-data}
  "$1" humaneval "task=humaneval task.stride=4"
  have spec_bench_question.jsonl &&
    "$1" specbench "task=specbench task.stride=12 task.path=$data/spec_bench_question.jsonl"
  have wmt_de_en_80.jsonl && "$1" wmt16 "task=wmt16 task.stride=2 task.path=$data/wmt_de_en_80.jsonl"
  have gsm8k_test.jsonl && "$1" gsm8k "task=gsm8k task.stride=30 task.path=$data/gsm8k_test.jsonl"
  have mbpp.jsonl &&
    "$1" mbpp "task=mbpp task.split=test task.stride=12 task.path=$data/mbpp.jsonl"
  have cnn_dailymail_test_100.jsonl &&
    "$1" cnndm "task=cnndm task.stride=2 task.path=$data/cnn_dailymail_test_100.jsonl"
}
