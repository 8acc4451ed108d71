# Sangam: `make demo` shows it working, `make test` proves it. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# What moves K/V between the demo's workers: tcp, ucx or auto; ucx installs the extra
KV_TRANSPORT ?=
# What `make chaos` does, and when
SEED ?= 1
# How long `make soak` takes
MINUTES ?= 15
# Where make train writes the model
DIR ?= run/sangam-tiny
# Options for pytest (and make train), e.g. make test ARGS='-k golden -x'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: chaos soak compose-test help install install-dev demo test mutants invariance lint format stubs bench-overhead bench-core bench-budget bench-kv train clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "== creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "error: no virtual environment could be made (on Debian: apt-get install python3-venv)" >&2; exit 1; }

$(VENV)/.installed-runtime: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing Sangam into $(VENV) (a minute or two; later calls skip this)"
	@$(PIP_INSTALL) --editable '.[gateway,kv-store,worker]' || \
	  { echo "error: the install failed, see above; check that the package index is reachable, then run make again" >&2; exit 1; }
	@touch $@

$(VENV)/.installed-ucx: pyproject.toml constraints.txt | $(VENV)/.installed-runtime
	@echo "== installing UCX into $(VENV)"
	@$(PIP_INSTALL) --editable '.[ucx]' || \
	  { echo "error: the install failed, see above; check that the package index is reachable, then run make again" >&2; exit 1; }
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing Sangam and its development tools into $(VENV) (a minute or two; later calls skip this)"
	@$(PIP_INSTALL) --editable '.[dev]' || \
	  { echo "error: the install failed, see above; check that the package index is reachable, then run make again" >&2; exit 1; }
	@touch $(VENV)/.installed-runtime $@

install: $(VENV)/.installed-runtime ## Create .venv and install what the services need.

install-dev: $(VENV)/.installed-dev ## The same with test and lint tools.

demo: $(VENV)/.installed-runtime $(if $(filter ucx,$(KV_TRANSPORT)),$(VENV)/.installed-ucx) ## Start all five services, ask questions, stream answers, print what they cost, stop.
	@$(BIN)/sangam demo $(if $(KV_TRANSPORT),--kv-transport $(KV_TRANSPORT))

test: $(VENV)/.installed-dev ## Run the whole suite (installs Debian's redis-server when it is missing).
	@.ci/install-redis
	@$(BIN)/python -m pytest $(ARGS)

mutants: $(VENV)/.installed-dev ## Break the cores one rule at a time; a table of what the suite kills (all of them).
	@PYTHONPATH=.:protos $(BIN)/python -m tests.core.mutants

invariance: $(VENV)/.installed-runtime ## Held-out questions to loaded clusters of each mode, with kills: every answer is its solo answer.
	@$(BIN)/python -m tests.invariance.proof

lint: $(VENV)/.installed-dev ## ruff, mypy, import rules, buf lint, stub check.
	@echo "== ruff"       && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== mypy"       && $(BIN)/mypy && $(BIN)/mypy tests
	@echo "== imports"    && $(BIN)/lint-imports
	@echo "== buf lint"   && $(BIN)/buf lint protos
	@echo "== stubs"      && $(BIN)/python protos/generate.py --check

format: $(VENV)/.installed-dev ## Let ruff format the code and sort the imports.
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

stubs: $(VENV)/.installed-dev ## Regenerate the gRPC stubs from protos/.
	@$(BIN)/python protos/generate.py

compose-test: $(VENV)/.installed-runtime ## Build the images, run the stack on a real Docker engine, break it (15 minutes at most).
	@$(BIN)/python -m tests.compose.proof

chaos: $(VENV)/.installed-runtime ## Kill, pause and cut off services under load; every answer must be its own (SEED=; 10 minutes at most).
	@$(BIN)/python -m tests.chaos.proof --seed $(SEED)

soak: $(VENV)/.installed-runtime ## A cluster at 70 % of its capacity for MINUTES=: errors, memory of each process minute by minute.
	@$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES)

bench-overhead: $(VENV)/.installed-runtime ## What the services add to a request, side by side with the bare engine.
	@$(BIN)/sangam bench-overhead

bench-kv: $(VENV)/.installed-runtime $(VENV)/.installed-ucx ## How fast K/V moves, side by side with raw sockets, UCXX and memcpy.
	@$(BIN)/sangam bench-kv

bench-core: $(VENV)/.installed-runtime ## Core events per second; what one event costs as cluster and queue grow.
	@$(BIN)/python -m common.bench.core

bench-budget: $(VENV)/.installed-runtime ## Adaptive token budget against fixed ones, simulated (an hour on one core); ARGS='--seeds 1'.
	@$(BIN)/python -m common.bench.budget $(ARGS)

# glibc gives large blocks back to the system at once, and every training step would fetch them again.
train: $(VENV)/.installed-runtime ## Train sangam-tiny anew into DIR (100 minutes on one core); ARGS='--model dream' for its twin.
	@MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000 \
	  $(BIN)/python -m common.training --out "$(DIR)" $(ARGS)

clean: ## Remove .venv and caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
