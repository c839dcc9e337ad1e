# Low-communication training. `make` lists the targets; only Python 3.11, make and a C compiler must be there before.
# Times in the list were measured on 2 CPU cores.
#   SCALE=smoke|cpu|gpu|paper   size of the reproduction     JOBS=2   processes, one thread each
#   PAPER=gpa|isoloco|…        only its tables            PYTHON=path   which Python 3.11
#   TORCH_INDEX=address         a further package index, to choose the build of torch (CPU, a CUDA version)
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV ?= .venv
READY ?= $(VENV)/.ready
PY ?= $(VENV)/bin/python
SCALE ?= smoke
JOBS ?= 2
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
FEW := scale.steps=32 scale.eval_every=32 scale.eval_samples=32 logger.progress=false # one round of H = 30 and a part

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.DEFAULT: ; @echo "make $@: there is no such target; 'make' lists them" >&2; exit 2
.PHONY: help env env-vllm lint test test-vllm smoke reproduce reproduce-gpa reproduce-isoloco reproduce-pulse reproduce-pulsesync reproduce-pulseloco reproduce-deploy tables notebooks bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## install the locked environment into .venv (2.5 GB; 2.5 minutes, 6 on a busy machine)
env-vllm: .venv-vllm/.ready ## install vLLM for CPUs, into .venv-vllm (2.5 GB; 3 minutes, 18 on a busy machine)

$(READY): requirements.lock
.venv-vllm/.ready: requirements-vllm.lock
.venv-vllm/.ready: ONLY := --only
$(READY) .venv-vllm/.ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "make env: Python 3.11 is needed; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 | head -n 1)"; \
	  echo "Install Python 3.11 and run 'make env PYTHON=/path/to/python3.11', or use conda: see environment.yml"; exit 1; }
	@$(PYTHON) tools/environment.py --venv $(@D) --lock $< $(ONLY) --index "$(TORCH_INDEX)"

lint: $(READY) ## style of the code, outputs left in notebooks (seconds)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m nbstripout --verify $(NOTEBOOKS) </dev/null

test: $(READY) ## the test suite (8 minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) -m 'not slow' tests

test-vllm: .venv-vllm/.ready ## the receiver in a real vLLM engine, on the CPU
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -m 'not slow' tests/vllm --timeout 900

smoke: $(READY) ## a few steps of every algorithm preset, on text, on images and in RL (36 short runs, 2 minutes)
	rm -rf runs/smoke
	LOWCOMM_RUNS=runs/smoke $(PY) -m lowcomm.train -m 'algorithm=glob(*)' workers=2 $(FEW)
	LOWCOMM_RUNS=runs/smoke $(PY) -m lowcomm.train -m 'algorithm=glob(*)' workers=2 workload=digits model=vit-tiny $(FEW)
	LOWCOMM_RUNS=runs/smoke $(PY) -m lowcomm.rl -m algorithm=adamw,pulsesync logger.progress=false

reproduce: $(READY) ## run what is missing, then tables, figures, notebooks; SCALE=smoke (about 6 minutes, 99 runs)|cpu|gpu|paper
	$(PY) -m lowcomm.reproduce scale=$(SCALE) jobs=$(JOBS) $(addprefix paper=,$(PAPER))
	$(MAKE) notebooks
reproduce-gpa: ## the same for the tables of the GPA paper
	$(MAKE) reproduce PAPER=gpa
reproduce-isoloco: ## the same for the tables of the IsoLoCo paper
	$(MAKE) reproduce PAPER=isoloco
reproduce-pulse: ## the same for the tables of PULSE: sparsity in RL
	$(MAKE) reproduce PAPER=pulse
reproduce-pulsesync: ## the same for the tables of PULSESync: patches
	$(MAKE) reproduce PAPER=pulsesync
reproduce-pulseloco: ## the same for the tables of PULSELoCo: several trainers
	$(MAKE) reproduce PAPER=pulseloco
reproduce-deploy: $(READY) ## weights over thin links in network namespaces (12 minutes; root and iproute2, else skipped with a reason)
	OMP_NUM_THREADS=1 $(PY) -m lowcomm.deploy --out paper_figures/deployment

tables: $(READY) ## the results page, tables and figures again, from the records alone (seconds)
	$(PY) -m lowcomm.results

notebooks: $(READY) ## run the notebooks on the records; pages in runs/notebooks (20 s of CPU time)
	$(PY) -m nbconvert --execute --to html --output-dir runs/notebooks $(NOTEBOOKS)

bench: $(READY) ## speed and memory against plain PyTorch, in one process, medians and ratios
	for script in bench/*.py; do OMP_NUM_THREADS=1 $(PY) $$script || exit 1; done

clean: ## remove caches; the environment, runs and records stay
	rm -rf .pytest_cache .ruff_cache .hypothesis build
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +
