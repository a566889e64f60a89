PYTHON ?= python3
VENV ?= .venv
PINS ?= constraints.txt
RUN := $(VENV)/bin/python

# Live tests wait most of the time: three files at once, each whole, since its tests share servers; live ones first.
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help provision test lint fmt demo live frameworks bench

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

provision: $(VENV)/.stamp ## Render deploy/ from site.yaml and check it
	@$(RUN) -m provisioning render --check

test: $(VENV)/.stamp ## Run every test, and those without servers on each other Python here and with the oldest SDK
	exec $(RUN) tests/beside.py "$(RUN) -m pytest $(SIDE_BY_SIDE)" "nice $(RUN) tests/interpreters.py"

lint: $(VENV)/.stamp ## Check style, format, types and the order of the packages
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo

fmt: $(VENV)/.stamp ## Format the code and mend what can be mended
	$(RUN) -m ruff format
	$(RUN) -m ruff check --fix

demo: $(VENV)/.stamp ## Show the whole thing on this machine: make demo [LOG=training.log]
	@$(RUN) -m provisioning.stack.demo $(if $(LOG),"$(LOG)")

live: $(VENV)/.stamp ## Run the tests that start real servers on loopback
	$(RUN) -m pytest -m live $(SIDE_BY_SIDE)

frameworks: $(VENV)/.stamp ## Run the callbacks' tests with PyTorch Lightning and Transformers: 2.5 GB to download, once
	$(RUN) tests/frameworks.py

bench: $(VENV)/.stamp ## Measure what the emitter costs a training loop, and what users wait for
	PYTHONPATH=. $(RUN) tests/bench.py

# Only what the pins list: our own packages run from the checkout, an installed megatron_watch would be a second emitter.
$(VENV)/.stamp: $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "make: Python must be 3.10 or newer (got %d.%d). Use make PYTHON=python3.11." % sys.version_info[:2])'
	@echo "Making $(VENV), once: some twenty seconds" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c $(PINS) pip
	@$(RUN) -m pip install --quiet --no-deps --no-compile -r $(PINS)
	@$(RUN) -m pip check >&2
	@touch $@
