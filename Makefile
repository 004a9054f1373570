# `make demo` and `make test` need Python >= 3.10, make and a C++ compiler; everything else comes into .venv.

PYTHON ?= python3
VENV   := .venv
# A release of torch other than that of constraints.txt; `make test-torch` sets it.
TORCH  :=
# What else pip and pytest are told, such as where an index with CPU builds lies, or which tests to run.
PIP_ARGS ?=
PYTEST_ARGS ?=
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# torch's extension tooling looks for ninja on PATH, and ninja lies in the environment.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Many small operations: more threads only get in each other's way, and results stay the same from run to run.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test lint types docstrings tests test-torch format bench power fuzz docs docs-rules docs-where docs-shown clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp is written last, so an installation that broke off starts again, and a finished one needs no network.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "pullback needs Python 3.10 or newer, and '$(PYTHON)' is older or missing: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[torch,dev]"
else # torch asks for a setuptools and a Triton of its own, so these aren't pinned beside another release
	grep -vE '^(torch|setuptools|triton)==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c $(VENV)/constraints.txt \
		-e ".[torch,dev]" "torch==$(TORCH)"
endif
	@touch $@

install: $(STAMP) ## set up .venv

demo: $(STAMP) ## run the operations of examples/chapter.py, then prove them
	$(BIN)/python examples/chapter.py
	$(BIN)/pullback check examples/chapter.py

test: lint types docstrings tests ## lint, types and all tests

lint: $(STAMP) ## ruff, rules and format; pullback lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pullback lint src examples

types: $(STAMP) ## mypy --strict on the sources; the typing tests run with the others
	$(BIN)/mypy --strict src

docstrings: $(STAMP) ## every test says which behaviour it holds
	$(BIN)/interrogate -v --omit-covered-files tests

tests: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --quiet $(PYTEST_ARGS)

test-torch: ## all tests on another release of torch, such as VERSION=2.12.1, in an environment of its own
	@test -n "$(VERSION)" || { echo "which torch? make test-torch VERSION=2.12.1" >&2; exit 2; }
	$(MAKE) VENV=.venv-torch-$(VERSION) TORCH=$(VERSION) tests

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## what a call costs, and what each operation costs, beside torch's own; twenty minutes
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/ops.py

power: $(STAMP) ## how many planted faults check finds, beside gradcheck; hours, and the same command goes on
	$(BIN)/python benchmarks/power.py --folder build/power

fuzz: $(STAMP) ## thousands of random Functions, and all triples of transforms, against their formulas; mangled sources
	PULLBACK_PROGRAMS=5000 PULLBACK_TRIPLES=216 PULLBACK_SEED=$$(date +%s) $(BIN)/python -m pytest -n 2 --quiet \
		--timeout 3600 tests/transforms/test_random_programs.py tests/transforms/matrix/test_matrix.py \
		tests/lint/test_fuzz.py

docs: $(STAMP) ## build the documentation's site into build/site; what doesn't hold there is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-shown: $(STAMP) ## run the commands of the tutorial and others, and write what they print anew
	$(BIN)/python -m tests.story README.md docs/tutorial.md docs/prove.md docs/lint.md docs/reference/command-line.md

docs-rules: $(STAMP) ## write docs/rules anew from the rulebook
	$(BIN)/pullback explain --markdown docs/rules --examples tests/lint/examples

docs-where: $(STAMP) ## write the tables of docs/what-works-where.md anew
	$(BIN)/python benchmarks/what_works_where.py --write

clean: ## remove what was built, .venv included
	rm -rf $(VENV) .venv-torch-* build dist .mypy_cache .pytest_cache .ruff_cache
