# `make plan` and `make test` work on a fresh machine with make and a Python >= 3.11; the rest is for developers.
# The first Python that runs (a version manager's shim may exist and fail) and can make a virtual environment.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do $$p -c '$(USABLE)' >/dev/null 2>&1 && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check install --constraint constraints.txt

.PHONY: plan test smoke lint sweep oracle live clean

plan: $(VENV)/.stamp
	@$(BIN)/meshwright plan --model kimi-k3@article --hardware b200 --gpus 16 --context 100000 --verify-width 5 --concurrency 64

# the tests of a file in one process: what they share is compiled once
test: $(VENV)/.stamp
	@echo "== tests"
	@$(BIN)/python -m pytest -n 2 --dist loadfile

smoke: $(VENV)/.stamp
	@echo "== smoke tests on $$($(BIN)/python -c 'import sys, jax; print("Python", sys.version.split()[0], "and JAX", jax.__version__)')"
	@$(BIN)/python -m pytest -m smoke

# SWEEP_MINUTES=20: as many of the cases as fit, others every day. No case meets a program that another has compiled.
sweep: $(VENV)/.stamp
	@echo "== sweeps$(if $(SWEEP_MINUTES), for $(SWEEP_MINUTES) minutes)"
	@JAX_ENABLE_COMPILATION_CACHE=false $(BIN)/python -m pytest -q -n 2 -p tests.sweeping -m sweep

# against PyTorch, which stays out of $(VENV)
oracle:
	@$(MAKE) --no-print-directory VENV=.venv-oracle live

live: $(VENV)/.stamp-oracle
	@echo "== live oracles with $$($(BIN)/python -c 'import torch, transformers as t; print("torch", torch.__version__, "and transformers", t.__version__)')"
	@$(BIN)/python -m pytest -m oracle tests/oracles

lint: $(VENV)/.stamp-lint
	@echo "== ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== pyright" && $(BIN)/pyright --pythonpath $(BIN)/python
	@echo "== import layers" && $(BIN)/lint-imports

clean:
	rm -rf .venv .venv312 .venv-oracle .jax_cache .pytest_cache .hypothesis .ruff_cache .import_linter_cache build *.egg-info

$(VENV)/.stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv was found: install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { echo "== making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "== installing the packages of constraints.txt (a few minutes the first time)"
	@$(PIP) --editable '.[test,search]'
	@touch $@

$(VENV)/.stamp-lint: $(VENV)/.stamp
	@echo "== installing the linters"
	@$(PIP) --editable '.[lint]'
	@touch $@

$(VENV)/.stamp-oracle: $(VENV)/.stamp constraints-oracle.txt
	@echo "== installing PyTorch and transformers"
	@$(PIP) --constraint constraints-oracle.txt torch transformers
	@touch $@
