#!/usr/bin/env bash
# Other pairs' shapes and other tasks, two prompts each (task.path=examples: prompts that come with the
# package). Shapes that do not fit are skipped, with a message.
source "$(dirname "$0")/common.sh"
pair() { # pair NAME EXPERIMENT TARGET DRAFT [OPTION...]
  local name=$1 experiment=$2 override
  override=$(shapes $3 $4) || { [ $? = 3 ] && return 0 || exit 1; } # 3: they do not fit
  shift 4
  measure pairs/$name bench $experiment "$@" model=reference task.limit=2 max_new=64 audit=none \
    $SMALL "$override"
}
pair deepseek_humaneval experiment=humaneval_deepseek-33b-6.7b deepseek-coder-33b deepseek-coder-6.7b
pair deepseek_mbpp experiment=mbpp_deepseek-33b-6.7b deepseek-coder-33b deepseek-coder-6.7b \
  task.path=examples
pair codellama_humaneval experiment=humaneval_codellama-34b-7b codellama-34b codellama-7b
pair codellama_mbpp experiment=mbpp_codellama-34b-7b codellama-34b codellama-7b task.path=examples
for task in mbpp gsm8k cnndm wmt16; do
  pair yi_$task experiment=${task}_yi-34b-6b yi-34b yi-6b task.path=examples
done
pair yi_specbench "decoder=[greedy,speculative,lookahead,ouroboros]" yi-34b yi-6b task=specbench \
  task.path=examples
for task in gsm8k cnndm wmt16; do
  pair llama2_$task experiment=${task}_llama2-70b-7b llama-2-70b llama-2-7b task.path=examples
done
pair llama2_without_draft "decoder=[greedy,lookahead,prompt_lookup]" llama-2-70b ""
finish
