# Low-communication training. `make` lists the targets; nothing but Python 3.11, make and a C compiler must be there before.
#   SCALE=smoke|cpu|gpu|paper   size of the reproduction         EXPERIMENT=gpa/...   one experiment instead of all
#   JOBS=2                      test processes                   PYTHON=path          which Python 3.11
#   TORCH_INDEX=address         a further package index, to choose the build of torch (CPU, a CUDA version)
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV ?= .venv
READY ?= $(VENV)/.ready
PY ?= $(VENV)/bin/python
SCALE ?= smoke
JOBS ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env lint test smoke reproduce reproduce-gpa tables notebooks bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## install the locked environment into .venv

$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "make env: Python 3.11 is needed; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 | head -n 1)"; \
	  echo "Install Python 3.11 and run 'make env PYTHON=/path/to/python3.11', or use conda: see environment.yml"; exit 1; }
	@$(PYTHON) tools/environment.py --venv $(VENV) --index "$(TORCH_INDEX)"

lint: $(READY) ## style of the code, outputs left in notebooks
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m nbstripout --verify $(wildcard notebooks/*.ipynb) </dev/null

test: $(READY) ## the test suite
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) tests

clean: ## remove caches; the environment, runs and records stay
	rm -rf .pytest_cache .ruff_cache .hypothesis build
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +
