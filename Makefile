# `make demo` and `make test` are all the set-up there is: each makes .venv by itself and is quick when nothing changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -qq install --constraint constraints.txt
# What torch is built for is chosen by the index pip is set up with; the version is ours.
TORCH := torch==2.13.0
# One compute thread per worker: two workers with two threads each on two cores are slower than one each.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo serve test test-drills test-quick lint protos clean

help: ## these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.installed ## a real model answers once; see the path of every millisecond
	@$(BIN)/diptych demo

serve: $(VENV)/.installed ## the local cluster, until Ctrl-C
	@$(BIN)/diptych up

test: lint $(VENV)/.light ## everything that must be green: lint, types, unit, property, integration, end to end
	@$(BIN)/python -m pytest -m "not drill"

test-drills: $(VENV)/.light ## slow drills: a bus outage of 60 s during traffic
	@$(BIN)/python -m pytest -m drill

test-quick: $(VENV)/.developing ## unit and property tests only
	@$(BIN)/python -m pytest tests/unit tests/property tests/test_architecture.py

lint: $(VENV)/.developing ## style, types, freshness of generated code
	@echo "ruff, mypy, protos"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python protos/generate.py --check

protos: $(VENV)/.developing ## rebuild services/pb from protos/
	@$(BIN)/python protos/generate.py

clean: ## forget the environments
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/pip:
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "installing torch (once, about a minute)"
	@$(PIP) $(TORCH)
	@echo "installing diptych"
	@$(PIP) --editable '.[worker]'
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	@echo "installing the development tools"
	@$(PIP) --editable '.[dev]'
	@touch $@

# An environment without torch: the light services run in it in the tests.
$(VENV)/.light: $(VENV)/.developing
	@echo "making $(VENV)/light, an environment without torch"
	@$(PYTHON) -m venv $(VENV)/light
	@$(VENV)/light/bin/pip --disable-pip-version-check -qq install --constraint constraints.txt --editable .
	@touch $@
