#!/usr/bin/env bash
# Measure everything that README and docs quote, one function per table.
#
#   bash scripts/reproduce/all.sh headline peers   these tables
#   DATA=/my/data bash scripts/reproduce/all.sh    all tables, in two hours; DATA is a folder of benchmark files
#   make tables                                   then write the tables of README and docs
#
# The models are the reference pair. Minutes are estimates for two CPU cores, which must be idle. Finished results
# are skipped, interrupted ones resume, failures are listed at the end. Results made by older code are moved to
# results/local/before and measured again. Files of tasks that DATA lacks are skipped, with a message.

source "$(dirname "${BASH_SOURCE[0]}")/../steps.sh"
DATA=${DATA:-data}

# bench FOLDER OPTIONS...: run `ouroboros bench`, after moving results of older code away.
bench() { begin "$1" && measure "$1" bench "${@:2}"; }

# begin FOLDER: move results of older code away, and record the current code.
begin() { [ -n "${DRY:-}" ] || "$PYTHON" scripts/reproduce/update_tables.py --begin "$RESULTS/$1"; }

# have FILE: check that DATA has a benchmark's file; print a message if not.
have() { [ -n "${DRY:-}" ] || [ -e "$DATA/$1" ] || { say "$1" "skipped: not in DATA=$DATA"; false; }; }

# both FOLDER OPTIONS...: run `ouroboros bench` greedily and sampled.
both() {
  bench "$1_t0" temperature=0 "${@:2}"
  bench "$1_t08" temperature=0.8 "${@:2}"
}

# The headline: 40 prompts x 128 tokens of HumanEval and GSM8K. 4 runs of 6 minutes.
headline() {
  local rivals=greedy,speculative,lookahead,prompt_lookup,suffix_decoding,suffix_hybrid,racer
  local options=("decoder=[$rivals,ouroboros,ouroboros_text]" task.limit=40 max_new=128)
  both headline/humaneval "${options[@]}" task.stride=4
  have gsm8k_test.jsonl &&
    both headline/gsm8k "${options[@]}" task=gsm8k "task.path=$DATA/gsm8k_test.jsonl" task.stride=30
}

# Six tasks with their scores, 20 prompts x up to 256 tokens. 12 runs of 4 minutes.
tasks() {
  task humaneval "" task.stride=8 task.execute_code=true
  task mbpp mbpp.jsonl task.split=test task.stride=24 task.execute_code=true
  task gsm8k gsm8k_test.jsonl task.stride=60
  task specbench spec_bench_question.jsonl task.stride=24
  task cnndm cnn_dailymail_test_100.jsonl task.stride=5
  task wmt16 wmt_de_en_80.jsonl task.stride=4
}
task() { # task NAME FILE OPTIONS...
  [ -z "$2" ] || have "$2" && both "tasks/$1" "task=$1" ${2:+"task.path=$DATA/$2"} "${@:3}" task.limit=20 \
    max_new=256 "decoder=[greedy,speculative,prompt_lookup,suffix_decoding,suffix_hybrid,ouroboros,ouroboros_text]"
}

# Decoders without a draft model, 20 prompts of HumanEval and GSM8K. 4 runs of 3 minutes.
text_alone() {
  local rivals=greedy,lookahead,prompt_lookup,suffix_decoding,token_recycling,racer
  local options=(model.draft=null "decoder=[$rivals,ouroboros]" task.limit=20 max_new=128)
  both text_alone/humaneval "${options[@]}" task.stride=8
  have gsm8k_test.jsonl &&
    both text_alone/gsm8k "${options[@]}" task=gsm8k "task.path=$DATA/gsm8k_test.jsonl" task.stride=60
}

# transformers' generation and, if it is installed (pip install llama-cpp-python), llama.cpp: the same weights in
# bfloat16 and, in another arithmetic, the original Q4_1 file. 6 minutes.
peers() {
  local decoders=greedy,speculative,prompt_lookup,ouroboros,hf_greedy,hf_assisted,hf_prompt_lookup options=() original
  if [ -n "${DRY:-}" ] || "$PYTHON" -c "import llama_cpp" 2>/dev/null; then
    decoders+=,llama_cpp,llama_cpp_lookup
    original=$("$PYTHON" -c 'from ouroboros.models.load import reference_file; print(reference_file())')
    options=(decoder.llama_cpp{,_lookup}.path=build/target.gguf)
    grep -q amx_int8 /proc/cpuinfo || # llama-cpp-python 0.3.36 crashes on this file with AMX
      options+=("+decoder.llama_cpp_q4_1={_target_:ouroboros.baselines.llama_cpp.LlamaCpp,path:'$original'}")
    [ -n "${DRY:-}" ] || [ -e build/target.gguf ] ||
      "$PYTHON" scripts/save_standin.py --out build/target --gguf build/target.gguf
  fi
  bench peers/humaneval_t0 experiment=peers max_new=128 "decoder=[$decoders]" "${options[@]}"
}

# Batches of 1, 4 and 16 prompts, where the next prompt takes the place of one that has ended. 3 runs of 4 minutes.
batches() {
  for size in 1 4 16; do
    bench "batches/b$size" "batch_size=$size" refill=true task.limit=32 task.stride=5 max_new=128 \
      "decoder=[greedy,hf_greedy,speculative,suffix_hybrid,prompt_lookup,ouroboros,ouroboros_text]"
  done
}

# Every decoder's tokens against standard decoding's, 41 prompts x 64 tokens in bfloat16. 2 runs of 12 minutes.
lossless() { both lossless/humaneval experiment=audit model.dtype=bfloat16 max_new=64 timing=false; }

# The plots beside these tables, from the results that exist.
plots() {
  plot headline comparison "$RESULTS"/headline/{humaneval,gsm8k}_t{0,08}
  plot tasks comparison "$RESULTS"/tasks/{humaneval,mbpp,gsm8k,specbench,cnndm,wmt16}_t0
  plot text_alone comparison "$RESULTS"/text_alone/{humaneval,gsm8k}_t{0,08}
  plot batches comparison-batches "$RESULTS"/batches/b{1,4,16}
}
plot() { # plot NAME PLOT FOLDERS...: write the report's PLOT to plots/NAME.svg
  local out=results/local/reports/$1
  [ -n "${DRY:-}" ] || rm -rf "$out"
  run "$out" "" "$PYTHON" -m ouroboros report "${@:3}" "out=$out" || return
  [ -n "${DRY:-}" ] || { mkdir -p "$RESULTS/plots" && cp "$out/plots/$2.svg" "$RESULTS/plots/$1.svg"; }
}

TABLES="headline tasks text_alone peers batches lossless plots"
for TABLE in ${@:-$TABLES}; do
  [[ " $TABLES " == *" $TABLE "* ]] || { echo "no table $TABLE: choose from $TABLES" >&2; exit 2; }
  $TABLE
done
finish
