# Two commands on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
# Everything lands in .venv, from pinned and hashed requirements; nothing needs root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
BIN := .venv/bin

# The system's certificates, so that a company's own authority is trusted as pip trusts it.
export UV_SYSTEM_CERTS := 1
# The interpreter is the one that made the venv; uv must not fetch another.
export UV_PYTHON_DOWNLOADS := never
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Compiled modules are kept, wherever this is run: without them each of hundreds of processes that the
# tests start compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

PIP_HASHED := $(BIN)/python -m pip install --quiet --require-hashes --no-deps
UV_PIP := $(BIN)/uv pip
# pip refuses hashes together with an editable install, so the project itself comes last and asks no index.
INSTALL_PROJECT := $(BIN)/python -m pip install --quiet --no-index --no-build-isolation --no-deps --editable .
COMPILE := $(UV_PIP) compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate

.PHONY: help demo test proofs check coverage bench simulate explore load scale flood campaign failover throughput gateway lock clean

help: ## Show this list.
	@sed -nE 's/^([a-z]+):.*## (.*)$$/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: .venv/.runtime ## Run the demonstration on loopback.
	@$(BIN)/doubtless demo

test: .venv/.dev ## Run the whole test suite (ARGS="-k name" narrows it).
	@$(BIN)/python -m pytest -n 4 --dist worksteal -m "not long" $(ARGS)

proofs: .venv/.dev ## Run the tests that are left out of `make test`, since they take their time.
	@$(BIN)/python -m pytest -n 4 --dist worksteal -m long $(ARGS)

check: .venv/.dev ## Formatting, lint, types, import contracts, dependencies, docs.
	@$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	$(BIN)/python -m tests.docs_check

coverage: .venv/.dev ## Run the suite under coverage and print what it misses.
	@$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

bench: .venv/.dev ## Measure cost and throughput.
	@$(BIN)/python -m doubtless.testing.bench $(ARGS)

simulate: .venv/.dev ## Run the engine against a simulated world (ARGS="--seed 7" replays one).
	@$(BIN)/python -m doubtless.testing.simulate $(ARGS)

explore: .venv/.dev ## Explore every reachable state of the lifecycle.
	@$(BIN)/python -m doubtless.testing.explore $(ARGS)

load: .venv/.dev ## Call a service whose provider loses answers with 200 clients for a minute, and count.
	@$(BIN)/python -m doubtless.testing.load --evidence docs/evidence.md $(ARGS)

scale: .venv/.dev ## Load ten million settled operations into a PostgreSQL server and measure (ARGS="--ledger …").
	@$(BIN)/python -m doubtless.testing.scale --evidence docs/evidence.md $(ARGS)

flood: .venv/.dev ## Send a service 10,000 webhooks, kill it in the middle, and count.
	@$(BIN)/python -m doubtless.testing.flood --evidence docs/evidence.md $(ARGS)

campaign: .venv/.dev ## Kill and stop workers and services on one PostgreSQL for ten minutes, and count.
	@$(BIN)/python -m doubtless.testing.campaign --evidence docs/evidence.md $(ARGS)

failover: .venv/.dev ## Kill a PostgreSQL primary under load 50 times, promote its standby, and count.
	@$(BIN)/python -m doubtless.testing.failover --evidence docs/evidence.md $(ARGS)

throughput: .venv/.dev ## Measure 1, 2 and 4 workers on one PostgreSQL, with us and with DBOS.
	@$(BIN)/python -m doubtless.testing.throughput --evidence docs/evidence.md $(ARGS)

gateway: .venv/.dev ## Measure what the MCP gateway costs a call, and 100 calls at once.
	@$(BIN)/python -m doubtless.testing.gateway_bench --evidence docs/evidence.md $(ARGS)

lock: .venv/.dev ## Refresh requirements/*.txt (ARGS=--upgrade moves the pins).
	@$(COMPILE) $(ARGS) --group dev pyproject.toml --output-file requirements/dev.txt
	$(COMPILE) --group build --constraints requirements/dev.txt pyproject.toml \
		--output-file requirements/runtime.txt
	$(COMPILE) --constraints requirements/dev.txt --output-file requirements/uv.txt - <<< uv

clean: ## Remove the environment and everything generated.
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache htmlcov dist
	rm -f .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The pinned installer. uv is quicker than pip; where its index can't be reached, pip does the same work.
.venv/.installer: requirements/uv.txt
	@command -v "$(PYTHON)" > /dev/null || {
	  echo "Python 3.11 or later is needed, and '$(PYTHON)' was not found. Say PYTHON=/path/to/python3." >&2
	  exit 1
	}
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	  echo "Python 3.11 or later is needed; this is $$("$(PYTHON)" --version). Say PYTHON=/path/to/python3." >&2
	  exit 1
	}
	"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || {
	  echo "Python's venv module is missing (on Debian: apt install python3-venv)." >&2
	  exit 1
	}
	echo "Preparing .venv with $$("$(PYTHON)" --version)"
	"$(PYTHON)" -m venv --clear .venv
	$(PIP_HASHED) --only-binary :all: --requirement requirements/uv.txt
	touch $@

# Adds what the product needs, and leaves a developer's tools where they are.
.venv/.runtime: .venv/.installer requirements/runtime.txt pyproject.toml
	@$(UV_PIP) install --quiet --compile-bytecode --require-hashes --requirement requirements/runtime.txt \
	  || $(PIP_HASHED) --requirement requirements/runtime.txt
	$(INSTALL_PROJECT)
	touch $@

# Exactly the development set, which contains the runtime one with the same pins.
.venv/.dev: .venv/.installer requirements/dev.txt requirements/runtime.txt pyproject.toml
	@$(UV_PIP) sync --quiet --compile-bytecode --require-hashes requirements/dev.txt \
	  || $(PIP_HASHED) --requirement requirements/dev.txt
	$(INSTALL_PROJECT)
	touch .venv/.runtime $@
