# make bench   install into .venv, then run seven decoders on the reference pair
# make test    install the development packages, then run the tests (GPU kernels in the interpreter) except
#              those marked slow; make test-all runs them too
# make test-versions   install the newest release of everything but torch into .venv-newest, and the oldest
#              supported torch and transformers into .venv-oldest; run the tests that depend on them in both
# make check   run linter and type checker; check that the tables in the docs match results/
# make tune    search every decoder's best settings on development text
# make evidence   measure everything that README and docs quote; two hours, rerun to resume
# make tables    write the tables of README and docs from results/
# make docs    build the documentation into build/site

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DEVELOPED := .venv/developed
EXTRA := bench
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
MODEL := 'from ouroboros.models.load import model_path; model_path("reference/draft")'
DRAFTER := 'from ouroboros.drafters.draft_tree.tree_grower import warm_up_jit; warm_up_jit()'
KERNELS := 'import torch; from ouroboros.engine.cpu_kernels import kernels; \
	kernels(torch.float32); kernels(torch.bfloat16)'

.NOTPARALLEL:
.PHONY: bench test test-all test-versions check tune evidence tables docs clean

bench: $(INSTALLED)
	$(BIN)/ouroboros bench task.limit=8 task.stride=20 max_new=128 $(ARGS)

test: QUICK := -m 'not slow'
test test-all: $(DEVELOPED)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(QUICK) $(ARGS)

VERSIONED := -n auto --dist loadfile -m 'not slow' tests/integrations tests/audit tests/models \
	$(addprefix tests/engine/test_,model.py fused.py static.py trial.py) tests/cli/test_main.py
OLDEST := torch==2.11.0 transformers==5.17.0
NEWEST := $(shell grep ^torch== constraints.txt) lm-eval[hf]
SETUP = $(PYTHON) -m venv $@ && $@/bin/pip install --quiet --no-compile

test-versions: .venv-newest .venv-oldest
	.venv-newest/bin/python -m pytest $(VERSIONED) $(ARGS)
	.venv-newest/bin/python -m pytest tests/test_lm_eval.py $(ARGS)
	.venv-oldest/bin/python -m pytest $(VERSIONED) $(ARGS)

.venv-newest .venv-oldest: pyproject.toml constraints.txt
	$(SETUP) $(if $(findstring newest,$@),$(NEWEST),$(OLDEST)) --editable '.[dev]'
	$@/bin/pip install --quiet --no-compile --no-deps --requirement reference.txt
	touch $@

check: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/reproduce/update_tables.py --check

evidence: $(INSTALLED)
	bash scripts/reproduce/all.sh

tables: $(INSTALLED)
	$(BIN)/python scripts/reproduce/update_tables.py $(ARGS)

tune: $(INSTALLED)
	$(BIN)/ouroboros tune $(ARGS)

docs: $(INSTALLED)
	$(PIP) --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# torch comes first and pinned, so that nothing else pulls in another build of it. Drafter and kernels are compiled,
# and the reference model converted, while the other packages are installed; if that fails, their first use does it.
# --no-compile: Python compiles the few modules that are used.
$(INSTALLED) $(DEVELOPED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch numba filelock transformers gguf accelerate
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement reference.txt
	$(BIN)/python -c $(MODEL) & $(BIN)/python -c $(DRAFTER) & $(BIN)/python -c $(KERNELS) & \
	$(PIP) --editable '.[$(EXTRA)]'; code=$$?; wait; exit $$code
	touch $(INSTALLED) $@

$(DEVELOPED): EXTRA := dev

clean:
	rm -rf .venv .venv-newest .venv-oldest build *.egg-info
