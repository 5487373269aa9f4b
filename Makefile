# make bench   install into .venv, then the main job: seven decoders on the reference pair, sampled
#              with shared noise where the pair's text repeats itself as real models' does
# make test    install what development needs as well, then the tests, the GPU's kernels interpreted;
#              without those marked slow, which make test-all runs too
# make check   linter, type checker, and whether the pages' tables are what results/ give
# make tune    search every decoder's settings with one budget on development text
# make evidence   measure everything that README and docs quote; hours, rerun to resume
# make figures    write the tables of README and docs from results/
# make docs    install what it needs, then build the documentation into build/site

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DEVELOPED := .venv/developed

.PHONY: bench test test-all check tune evidence figures docs clean

bench: $(INSTALLED)
	$(BIN)/ouroboros bench temperature=0.32 $(ARGS)

test: QUICK := -m 'not slow'
test test-all: $(DEVELOPED)
	$(BIN)/python -m pytest -n auto --dist loadfile $(QUICK) $(ARGS)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/engine/test_kernels.py

check: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/reproduce/figures.py --check

evidence: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[recordings]'
	bash scripts/reproduce/all.sh

figures: $(INSTALLED)
	$(BIN)/python scripts/reproduce/figures.py $(ARGS)

tune: $(INSTALLED)
	$(BIN)/ouroboros tune $(ARGS)

docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# torch comes first and pinned, so that nothing else pulls in another build of it.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@

$(DEVELOPED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info
