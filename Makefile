# Two commands matter: `make demo` and `make test`. Each makes the virtual environment it needs.
PYTHON ?= python3
VENV ?= .venv
SHARED_VENV := .venv-wandb-shared
BIN := $(VENV)/bin
INSTALL := PYTHON=$(PYTHON) .ci/install
DEMO_ARGS ?=
PYTEST_ARGS ?=
# Most tests wait for processes and trackers: three times as many workers as cores, each with up to 0.6 GB. Tests that share a
# server stay in one worker.
TEST_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(3 * (os.cpu_count() or 1), 16))')
IN_PARALLEL := -n $(TEST_WORKERS) --dist loadgroup --no-loadscope-reorder
FUZZ_SECONDS ?= 60
SOAK_MINUTES ?= 10
CELLS ?= all
STORM_MINUTES ?= 15
# Where it is set, each of the hundreds of processes of the tests would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
PYTHON_ROOTS := otel_bridge exporters collector examples tests benchmarks

.PHONY: help demo otelcol test test-fast test-long test-genai test-frameworks test-frameworks-floor test-versions check format fuzz soak storm bench pictures docs docs-site clean
.DEFAULT_GOAL := help

help: ## Show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.users: pyproject.toml
	@$(INSTALL) $(VENV) -e '.[all]'
	@touch $@

$(VENV)/.developers: $(VENV)/.users
	@$(INSTALL) $(VENV) --group dev
	@touch $@

# Once by one process: else each worker compiles all that a fresh environment and a fresh clone import.
$(VENV)/.compiled: $(VENV)/.developers
	@$(BIN)/python -m pytest --collect-only -q >/dev/null
	@touch $@

# W&B's shared mode is refused in the newest wandb: its tests run child processes with one in which it is safe.
$(SHARED_VENV)/.made: pyproject.toml
	@$(INSTALL) $(SHARED_VENV) -e . 'wandb==0.30.0'
	@touch $@

demo: $(VENV)/.users ## Run a small real RL job into W&B (offline), MLflow and Trackio
	$(BIN)/otel-bridge demo $(DEMO_ARGS)

test: $(VENV)/.compiled ## Run the tests, in parallel (TEST_WORKERS=0: one after the other)
	@if command -v go >/dev/null 2>&1; then $(MAKE) --no-print-directory otelcol || echo 'tests of the stock Collector are left out'; fi
	$(BIN)/python -m pytest $(IN_PARALLEL) -m 'not long' $(PYTEST_ARGS)

test-long: $(VENV)/.compiled $(SHARED_VENV)/.made ## Run the tests that take long: kills by the dozen, whole jobs, outages (.ci/run: a third of them by commit)
	@if command -v go >/dev/null 2>&1; then $(MAKE) --no-print-directory otelcol || echo 'tests of the stock Collector are left out'; fi
	$(BIN)/python -m pytest $(IN_PARALLEL) -m long $(PYTEST_ARGS)

test-fast: $(VENV)/.compiled ## Run the tests that take no real tracker
	$(BIN)/python -m pytest $(IN_PARALLEL) -m 'not slow' $(PYTEST_ARGS)

otelcol: ## Build the stock Collector that tests and collector/otelcol/ use (with Go; 3 minutes, once)
	collector/otelcol/build.sh
	collector/otelcol/build.sh telemetrygen

check: $(VENV)/.developers ## Lint, types, import contracts, the words of the glossary, plain lines, the oldest Python
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tests/words.py
	$(BIN)/python tests/plain.py
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/vermin --quiet --no-tips --violations --eval-annotations --target=3.10- --exclude file $(PYTHON_ROOTS)
	$(BIN)/pyright

format: $(VENV)/.developers ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz: $(VENV)/.developers ## Fuzz decoding, segments and translation, FUZZ_SECONDS each (60)
	@for target in protobuf json segment translation; do \
	  $(BIN)/python tests/fuzz/run_fuzz.py $$target $(FUZZ_SECONDS) || exit 1; done

test-versions: $(VENV)/.developers ## Test other versions of the trackers, each in an environment of its own; CELLS=floor-newest for some
	PYTHONPATH=tests $(BIN)/python -m versions.run $(CELLS)

# Real GenAI packages do not fit beside everything: they have an environment of their own.
GENAI_VENV := .venv-genai
$(GENAI_VENV)/.made: tests/genai/requirements.txt
	@$(INSTALL) $(GENAI_VENV) -r tests/genai/requirements.txt
	@touch $@

test-genai: $(VENV)/.developers $(GENAI_VENV)/.made ## Run real GenAI instrumentations against a local model
	GENAI_PYTHON=$(abspath $(GENAI_VENV))/bin/python $(BIN)/python -m pytest tests/genai $(PYTEST_ARGS)

# Training frameworks, with otel-bridge beside them; some pin what others exclude and are installed without dependencies.
FRAMEWORKS_VENV := .venv-frameworks
$(FRAMEWORKS_VENV)/.made: tests/frameworks/requirements.txt tests/frameworks/requirements-alone.txt pyproject.toml
	@$(INSTALL) $(FRAMEWORKS_VENV) -e . -r tests/frameworks/requirements.txt
	@$(INSTALL) $(FRAMEWORKS_VENV) --no-deps -r tests/frameworks/requirements-alone.txt
	@touch $@

test-frameworks: $(VENV)/.developers $(FRAMEWORKS_VENV)/.made ## Run the adapters in real training frameworks, on the CPU (6 GB, 10 minutes)
	FRAMEWORKS_PYTHON=$(abspath $(FRAMEWORKS_VENV))/bin/python $(BIN)/python -m pytest tests/frameworks $(PYTEST_ARGS)

# The oldest versions that the adapters support, and the last of transformers 4: with the same torch, so that little is added.
FLOOR_VENV := .venv-frameworks-floor
TRANSFORMERS4_VENV := .venv-frameworks-transformers4
$(FLOOR_VENV)/.made: tests/frameworks/requirements-floor.txt pyproject.toml
	@$(INSTALL) $(FLOOR_VENV) -e . -r tests/frameworks/requirements-floor.txt
	@touch $@

$(TRANSFORMERS4_VENV)/.made: tests/frameworks/requirements-transformers4.txt pyproject.toml
	@$(INSTALL) $(TRANSFORMERS4_VENV) -e . -r tests/frameworks/requirements-transformers4.txt
	@touch $@

FLOOR_TESTS := $(patsubst %,tests/frameworks/test_%.py,accelerate lightning ray_tune transformers)
test-frameworks-floor: $(VENV)/.developers $(FLOOR_VENV)/.made $(TRANSFORMERS4_VENV)/.made ## Run the adapters in the oldest frameworks they support, and in transformers 4
	FRAMEWORKS_FLOOR=1 FRAMEWORKS_PYTHON=$(abspath $(FLOOR_VENV))/bin/python $(BIN)/python -m pytest $(FLOOR_TESTS) $(PYTEST_ARGS)
	FRAMEWORKS_PYTHON=$(abspath $(TRANSFORMERS4_VENV))/bin/python $(BIN)/python -m pytest tests/frameworks/test_transformers.py $(PYTEST_ARGS)

soak: $(VENV)/.developers ## Let a service run under outages and kills, SOAK_MINUTES (10); everything bounded, every row arrives
	$(BIN)/python -m benchmarks.soak --minutes $(SOAK_MINUTES)

storm: $(VENV)/.developers ## Kill workers, bridges and the service under real trackers, STORM_MINUTES (15); all arrives, once
	$(BIN)/python -m benchmarks.soak --storm --minutes $(STORM_MINUTES)

bench: $(VENV)/.developers ## Measure speed against the real peers, as ratios in one run
	$(BIN)/python -m benchmarks

pictures: $(VENV)/.developers ## Take the pictures of the documentation anew (with Chromium)
	$(BIN)/otel-bridge demo --dir build/pictures --exporters mlflow,trackio
	PYTHONPATH=tests $(BIN)/python tests/support/browser/browser_pictures.py build/pictures docs/pictures
	PYTHONPATH=tests $(BIN)/python tests/support/browser/terminal_pictures.py docs/pictures init run drain doctor demo status timeline consumed tokens watch ranks engines

docs: $(VENV)/.developers ## Write the pages that are made of the code and of the registry of names
	PYTHONPATH=.:exporters:collector $(BIN)/python docs_site/settings_page.py > docs/settings.md
	PYTHONPATH=.:exporters:collector $(BIN)/python docs_site/metrics_page.py > docs/service-metrics.md
	PYTHONPATH=. $(BIN)/python docs_site/semconv_page.py

$(VENV)/.site: $(VENV)/.developers
	@$(INSTALL) $(VENV) --group site
	@touch $@

docs-site: $(VENV)/.site ## Build the documentation site into build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict -f docs_site/mkdocs.yml
	@echo 'open build/site/index.html'

clean: ## Remove the environment and what the tools left
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
