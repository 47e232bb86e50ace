# `make demo` and `make test` are all the set-up there is: each makes .venv by itself and is quick when nothing changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
VLLM := .venv-vllm
PIP := $(BIN)/pip --disable-pip-version-check -qq install --constraint constraints.txt
# What torch is built for is chosen by the index pip is set up with; the version is ours.
TORCH := torch==2.13.0
# One compute thread per worker: two workers with two threads each on two cores are slower than one each.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo serve test test-anchor test-faults test-drills test-sweep test-quick lint protos bench bench-peers bench-vllm clean

help: ## these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.installed ## a real model answers once; see the path of every millisecond
	@$(BIN)/diptych demo

serve: $(VENV)/.installed ## the local cluster, until Ctrl-C
	@$(BIN)/diptych up

test: lint $(VENV)/.light ## everything that must be green: lint, types, unit, property, integration, end to end
	@$(BIN)/python -m pytest -m "not drill and not sweep and not anchor and not matrix"

test-anchor: $(VENV)/.light ## split == unsplit in full: 200 requests, under every fault, with processes killed (15 minutes)
	@$(BIN)/python -m pytest -m anchor tests/faults

test-faults: $(VENV)/.light ## every cell of docs/failures.md: each fault in each stage of a request (25 minutes)
	@$(BIN)/python -m pytest -m matrix tests/faults

test-drills: $(VENV)/.light ## slow drills: a bus outage of 60 s during traffic, a planted delay on every hop
	@$(BIN)/python -m pytest -m drill

test-sweep: $(VENV)/.developing ## GPU kernels over every combination of shapes, in the interpreter: many minutes
	@$(BIN)/python -m pytest -m sweep tests/unit/engine/triton

test-quick: $(VENV)/.developing ## unit and property tests only
	@$(BIN)/python -m pytest -m "not sweep" tests/unit tests/property tests/test_architecture.py

lint: $(VENV)/.developing ## style, types, freshness of generated code
	@echo "ruff, mypy, protos"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python protos/generate.py --check

protos: $(VENV)/.developing ## rebuild services/pb from protos/
	@$(BIN)/python protos/generate.py

bench: $(VENV)/.developing bench-peers ## our engine, then our servers, against llama.cpp and transformers on this machine
	@$(BIN)/python benchmarks/engine.py
	@$(BIN)/python benchmarks/serving.py

bench-peers: $(PEERS)/.installed ## build llama.cpp and install transformers, once, in .venv-peers (a quarter of an hour)

bench-vllm: $(VLLM)/.installed ## vLLM for CPUs, once, in .venv-vllm; the benchmark goes without it

clean: ## forget the environments
	rm -rf $(VENV) $(PEERS) $(VLLM) .pytest_cache .mypy_cache .ruff_cache

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

$(PEERS)/.installed: benchmarks/install_peers.sh benchmarks/peers.txt
	@test -x $(PEERS)/bin/pip || $(PYTHON) -m venv $(PEERS)
	@benchmarks/install_peers.sh $(PEERS)
	@touch $@

# What vLLM needs only for pictures and sound comes built for another torch, and would fail when imported.
$(VLLM)/.installed: benchmarks/vllm.txt
	@test -x $(VLLM)/bin/pip || $(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/pip --disable-pip-version-check -qq install -r benchmarks/vllm.txt
	@$(VLLM)/bin/pip --disable-pip-version-check -qq uninstall -y torchvision torchaudio torchcodec
	@$(VLLM)/bin/python -c "import vllm"
	@touch $@
