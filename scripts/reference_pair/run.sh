#!/usr/bin/env bash
# How the reference pair in ouroboros/reference was made: two hours on two CPU cores with AMX. Each
# step resumes its own checkpoint, so rerun the script after an interruption. On one GPU nine minutes
# are enough for 500M tokens: MINUTES="5 1 2" DEVICE=cuda.
#
#   WHEELS=wheels DATA=data WORK=results/local/pair bash scripts/reference_pair/run.sh
#
# WHEELS holds permissively licensed wheels (pip download), DATA gsm8k_train.jsonl and the benchmarks
# that the corpus must not contain.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
WORK=${WORK:-results/local/pair} OUT=${OUT:-$WORK/pair}
read -r TARGET POLISH DRAFT <<<"${MINUTES:-80 10 20}"
train() { "$PYTHON" scripts/reference_pair/train.py "$1" work="$WORK" "${@:2}"; }
DEVICE=(${DEVICE:+device="$DEVICE"})

# Corpus: standard library, wheels and worked GSM8K examples; no 13-gram of a benchmark. A byte-level
# BPE of 8,192 tokens.
[ -e "$WORK/manifest.json" ] || train prepare wheels="$WHEELS" gsm8k="$DATA/gsm8k_train.jsonl" \
  "forbid=[humaneval,$DATA/mbpp.jsonl,$DATA/gsm8k_test.jsonl]"

# Target: six layers of width 384, trained on next tokens.
train target minutes="$TARGET" "${DEVICE[@]}"

# Polish: unlikelihood of repeated 4-grams, so that greedy text does not run into loops.
train polish minutes="$POLISH" "${DEVICE[@]}"

# Draft: the target's layers merged in groups, trained on the target's distribution and text.
train draft minutes="$DRAFT" "${DEVICE[@]}"

# Export in bf16, and measure.
train export out="$OUT"
