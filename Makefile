# Two commands matter: `make demo` and `make test`. Each makes the virtual environment it needs.
PYTHON ?= python3
VENV ?= .venv
SHARED_VENV := .venv-wandb-shared
BIN := $(VENV)/bin
DEMO_ARGS ?=
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
SOAK_MINUTES ?= 10
PYTHON_ROOTS := otel_bridge exporters collector examples tests benchmarks

.PHONY: help demo otelcol test test-fast check format fuzz soak bench docs clean
.DEFAULT_GOAL := help

help: ## Show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.users: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[all]'
	@touch $@

$(VENV)/.developers: $(VENV)/.users
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

# W&B's shared mode is refused in the newest wandb: its tests run child processes with one in which it is safe.
$(SHARED_VENV)/.made: pyproject.toml
	@test -x $(SHARED_VENV)/bin/python || $(PYTHON) -m venv $(SHARED_VENV)
	$(SHARED_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(SHARED_VENV)/bin/python -m pip install --quiet -e . 'wandb==0.30.0'
	@touch $@

demo: $(VENV)/.users ## Run a small real RL job into W&B (offline), MLflow and Trackio
	$(BIN)/otel-bridge demo $(DEMO_ARGS)

test: $(VENV)/.developers $(SHARED_VENV)/.made ## Run every test
	@if command -v go >/dev/null 2>&1; then $(MAKE) --no-print-directory otelcol || echo 'tests of the stock Collector are left out'; fi
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(VENV)/.developers ## Run the tests that take no real tracker
	$(BIN)/python -m pytest -m 'not slow' $(PYTEST_ARGS)

otelcol: ## Build the stock Collector that tests and collector/otelcol/ use (with Go; 3 minutes, once)
	collector/otelcol/build.sh
	collector/otelcol/build.sh telemetrygen

check: $(VENV)/.developers ## Lint, types, import contracts, the oldest Python
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations --eval-annotations --target=3.10- --exclude file $(PYTHON_ROOTS)

format: $(VENV)/.developers ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz: $(VENV)/.developers ## Fuzz decoding, segments and translation, FUZZ_SECONDS each (60)
	@for target in protobuf json segment translation; do \
	  $(BIN)/python tests/fuzz/run_fuzz.py $$target $(FUZZ_SECONDS) || exit 1; done

soak: $(VENV)/.developers ## Let a service run under outages and kills, SOAK_MINUTES (10); everything bounded, every row arrives
	$(BIN)/python -m benchmarks.soak --minutes $(SOAK_MINUTES)

bench: $(VENV)/.developers ## Measure speed against the real peers, as ratios in one run
	$(BIN)/python -m benchmarks

docs: $(VENV)/.developers ## Write the pages that are made of the code
	PYTHONPATH=.:exporters:collector $(BIN)/python tests/settings_page.py > docs/settings.md

clean: ## Remove the environment and what the tools left
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
