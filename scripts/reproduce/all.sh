#!/usr/bin/env bash
# Measure everything that README and docs quote, one function per table.
#
#   bash scripts/reproduce/all.sh main_t0 tasks    these tables
#   DATA=/my/data bash scripts/reproduce/all.sh    all tables, in ten hours; DATA is a folder of benchmark files
#   make tables                                   then write the tables of README and docs
#
# Minutes are for two CPU cores. Timed functions need an idle machine; counting ones may run side by side,
# each on one thread. Finished results are skipped, interrupted ones resume, failures are listed at the end.
# Results made by older code are moved to results/local/before and measured again.

source "$(dirname "${BASH_SOURCE[0]}")/../steps.sh"
COUNT="timing=false threads=1"
AS_IS="model.standin=null model.dtype=float32"
DATA=${DATA:-data}

# bench FOLDER OPTIONS...: run `ouroboros bench`, after moving results of older code away.
bench() { begin "$1" && measure "$1" bench "${@:2}"; }

# begin FOLDER: move results of older code away, and record the current code.
begin() { [ -n "${DRY:-}" ] || "$PYTHON" scripts/reproduce/update_tables.py --begin "$RESULTS/$1"; }

# have FILE: check that DATA has a benchmark's file; print a message if not.
have() { [ -n "${DRY:-}" ] || [ -e "$DATA/$1" ] || { say "$1" "skipped: not in DATA=$DATA"; false; }; }

# for_each_task FUNCTION: call FUNCTION with each task's name and options.
for_each_task() {
  "$1" humaneval "task=humaneval task.stride=4"
  have spec_bench_question.jsonl &&
    "$1" specbench "task=specbench task.stride=12 task.path=$DATA/spec_bench_question.jsonl"
  have wmt_de_en_80.jsonl && "$1" wmt16 "task=wmt16 task.stride=2 task.path=$DATA/wmt_de_en_80.jsonl"
  have gsm8k_test.jsonl && "$1" gsm8k "task=gsm8k task.stride=30 task.path=$DATA/gsm8k_test.jsonl"
  have mbpp.jsonl && "$1" mbpp "task=mbpp task.split=test task.stride=12 task.path=$DATA/mbpp.jsonl"
  have cnn_dailymail_test_100.jsonl &&
    "$1" cnndm "task=cnndm task.stride=2 task.path=$DATA/cnn_dailymail_test_100.jsonl"
}

# ---- counted

# Equality with greedy: seven decoders on 164 prompts, float32. 15 minutes.
equality() { bench equality experiment=equality $COUNT max_new=64; }

# Nine decoders audited against plain decoding, greedy and sampled. 6 runs of 4 minutes.
audit() {
  for temperature in 0 0.7 1.0; do
    for dtype in float32 bfloat16; do
      folder=audit/t${temperature//./}_${dtype/bfloat16/bf16}
      bench $folder experiment=audit $COUNT temperature=$temperature model.dtype=$dtype \
        task.stride=8 max_new=64 &&
        step $folder audit.md "$PYTHON" -m ouroboros audit $RESULTS/$folder
    done
  done
}

# Calls and cost per token of the published algorithm and of Ouroboros. 6 minutes.
calls_per_token() { bench calls_per_token experiment=calls_per_token $COUNT; }

# Every drafter: counts, and times predicted with the costs of a few CPU cores and of a GPU (`flat`).
# 12 runs each, of 5 minutes.
drafters_epyc() { for_each_task both_temperatures; }
drafters_flat() { for_each_task both_temperatures; }
both_temperatures() {
  for temperature in 0 0.8; do
    bench $TABLE/$1_t${temperature/./} experiment=$TABLE $2 temperature=$temperature
  done
}

# Ouroboros without one of its components at a time: cost per token. 2 runs of 4 minutes.
ablation() {
  for temperature in 0 0.8; do
    bench ablation/t${temperature/./} experiment=ablation $COUNT $AS_IS temperature=$temperature
  done
}

# Phrases kept for a whole task, in three orders of its prompts. 3 runs of 3 minutes.
warm_start() {
  for order in null 1 2; do
    folder=shuffled_$order
    bench warm_start/${folder/shuffled_null/in_order} experiment=warm_start $COUNT $AS_IS \
      hydra.mode=RUN task.shuffle=$order
  done
}

# Regret of the configured settings, for the costs of each machine. 2 hours.
tuning() {
  tune with_draft speculative,suffix_hybrid,hf_assisted,ouroboros
  tune without prompt_lookup,prompt_lookup_adaptive,suffix_decoding,racer,token_recycling,lookahead
}
tune() {
  begin tuning/$1
  step tuning/$1 tuning.json "$PYTHON" -m ouroboros tune "decoder=[$2]" limit=4 first=2 \
    max_new=48 trials=12 "temperatures=[0,0.8]" threads=1 results_dir=$RESULTS/tuning/$1
}

# int8 weights of the draft, the target and both: counts of the small pair. 8 runs of 1 minute.
quantised() {
  for dtype in bfloat16 float32; do
    for int8 in none draft target both; do
      case $int8 in
        none) weights="" ;;
        both) weights="draft_weights=int8 target_weights=int8" ;;
        *) weights="${int8}_weights=int8" ;;
      esac
      bench quantised/${dtype/bfloat16/bf16}_$int8 $COUNT \
        "decoder=[greedy,speculative,lookahead,ouroboros,hf_assisted]" model.standin=null \
        task.limit=10 task.stride=16 "task.stop=[]" max_new=64 model.dtype=$dtype $weights
    done
  done
}

# ---- timed

# The headline, with three repeats: at T = 0.32, where text is as repetitive as a real model's, at T = 0 and
# at T = 0.8. 25, 20 and 27 minutes.
HEADLINE="model.dtype=float32 task.limit=20 task.stride=8 repeats=3"
main_matched() { bench main_matched $HEADLINE temperature=0.32; }
main_t0() { bench main_t0 $HEADLINE; }
main_t08() { bench main_t08 $HEADLINE temperature=0.8; }

# transformers' generation in all its modes, and llama.cpp (pip install llama-cpp-python gguf). 8 minutes.
peers() {
  [ -n "${DRY:-}" ] || [ -e build/target.gguf ] || "$PYTHON" scripts/save_standin.py \
    --shape smollm2-360m --dtype bfloat16 --out build/target --gguf build/target.gguf
  bench peers experiment=peers decoder.llama_cpp.path=build/target.gguf \
    decoder.llama_cpp_lookup.path=build/target.gguf \
    "decoder=[greedy,speculative,prompt_lookup,ouroboros,hf_greedy,hf_assisted,hf_assisted_defaults,hf_assisted_constant,hf_prompt_lookup,llama_cpp,llama_cpp_lookup]"
}

# Every task, with 48 and 128 new tokens. 12 runs of 3 minutes.
tasks() { for new in 48 128; do for_each_task timed_task; done; }
timed_task() { bench tasks/$new/$1 $2 task.limit=10 max_new=$new model.dtype=auto repeats=3; }

# Batches of 1 to 16 prompts, refilled or static. 9 runs of 1 to 2 minutes, then the plots.
batch() {
  for size in 1 2 4 8 16; do
    bench batch/refilled/b$size experiment=batch hydra.mode=RUN batch_size=$size refill=true
    [ $size = 1 ] ||
      bench batch/static/b$size experiment=batch hydra.mode=RUN batch_size=$size repeats=3
  done
  for kind in refilled static; do
    [ -n "${DRY:-}" ] || rm -f $RESULTS/batch/$kind.png # of older results, perhaps
    step batch $kind.png bash -c "$PYTHON -m ouroboros report $RESULTS/batch/$kind \
      out=$RESULTS/local/batch_$kind &&
      cp $RESULTS/local/batch_$kind/plots/comparison-batches.png $RESULTS/batch/$kind.png"
  done
}
# Prompts of 512, 2k and 8k tokens. 1, 2 and 6 minutes.
context_length() {
  for length in 512 2048 8192; do
    bench context_length/c$length experiment=context_length hydra.mode=RUN \
      context_tokens=$length task.limit=8 task.stride=20 audit=none
  done
}

# Where the time goes. 3 minutes. (costs/epyc.yaml is made from results/profile.)
step_profile() {
  begin step_profile
  measure step_profile profile model.dtype=auto
}

# The host's time per step. 2 minutes.
host() { begin host && step host host.json "$PYTHON" scripts/reproduce/host_overhead.py; }

# One call by number of rows: modules, kernels, llama.cpp and the floor of the bandwidth. 6 minutes.
call_times() {
  begin call_times
  step call_times call_times.csv "$PYTHON" scripts/call_times.py $RESULTS/call_times
}

# Decoders inside the lm-evaluation-harness: equal scores at different speeds. 3 minutes.
lm_eval() {
  begin lm_eval
  step lm_eval ouroboros.json "$PYTHON" scripts/reproduce/lm_eval_task.py $RESULTS/lm_eval
}

TABLES="equality audit calls_per_token drafters_epyc drafters_flat ablation warm_start
  tuning quantised main_matched main_t0 main_t08 peers tasks batch context_length
  step_profile host call_times lm_eval"
for TABLE in ${@:-$TABLES}; do
  [[ " $(echo $TABLES) " == *" $TABLE "* ]] || { echo "no table $TABLE: choose from" $TABLES >&2; exit 2; }
  $TABLE
done
finish
