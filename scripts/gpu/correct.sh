#!/usr/bin/env bash
# Check correctness on this device: audit every decoder's text, and run the tests that need a GPU
# (attention, products, engines, noise, graphs, rolled drafts).
source "$(dirname "$0")/common.sh"
measure correct/float32 bench experiment=gpu_correct audit=all $SMALL
measure correct/float32_sampled bench experiment=gpu_correct audit=all temperature=0.8 $SMALL
measure correct/bfloat16 bench experiment=gpu_correct audit=all $SMALL model.dtype=bfloat16
step correct lossless "$PYTHON" scripts/gpu/checks.py lossless \
  $RESULTS/correct/{float32,float32_sampled,bfloat16}
step correct kernels "$PYTHON" -m pytest -p no:cacheprovider tests/engine/test_triton.py
step correct tests "$PYTHON" -m pytest -m gpu -p no:cacheprovider tests/engine \
  tests/core/test_select.py
finish
