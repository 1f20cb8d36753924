# The commands of this project. `make demo` and `make test` need Linux, Python 3.11 to 3.14 with venv, g++ and make.
# Variables: PYTHON (the interpreter to make .venv with), TORCH_INDEX (an index that has the CPU build of torch),
# for `make gpu` WHEELS (a folder of wheels for a machine without a network) and KERNELBENCH (a checkout of KernelBench).

PYTHON ?= python3
PYTEST_ARGS ?= -q -n auto --maxprocesses 4 --dist worksteal
export TORCH_INDEX

BIN := .venv/bin
GPU_BIN := .venv-gpu/bin
DEMO := examples/gelu_layernorm.py

.NOTPARALLEL:
.PHONY: help demo test test-all test-slow gpu gpu-test lint clean python

help:
	@echo "make demo      set up .venv and optimise a shipped operator"
	@echo "make test      set up .venv and run the tests"
	@echo "make test-all  every test: the slow ones (test-slow: those alone) and all rows of the large tables"
	@echo "make gpu       on a CUDA machine: demo and GPU tests, or the benchmark with KERNELBENCH=DIR"
	@echo "make gpu-test  the GPU tests alone: verdicts, cheats and their honest twins, kernels, deep checks"
	@echo "make lint      ruff and mypy"
	@echo "make clean     remove .venv and caches; runs and memory are kept"

python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	    echo "set-up: $(PYTHON) was not found. Install Python 3.11 to 3.14 (Debian and Ubuntu:" \
	         "apt-get install python3 python3-venv), or name one: make PYTHON=python3.12 ..." >&2; exit 2; }

demo: python
	@$(PYTHON) scripts/setup_environment.py --for run
	$(BIN)/htam optimize $(DEMO) --backend auto --coder template --require-faster --faster-than eager

test: python
	@$(PYTHON) scripts/setup_environment.py --for dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: python
	@$(PYTHON) scripts/setup_environment.py --for dev
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-all: python
	@$(PYTHON) scripts/setup_environment.py --for dev
	$(BIN)/python -m pytest -m "slow or exhaustive or not slow" $(PYTEST_ARGS)

lint: python
	@$(PYTHON) scripts/setup_environment.py --for dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The torch that is there is used: a system Python, or an active environment, with torch >= 2.9 for CUDA.
gpu: python
	@$(PYTHON) scripts/setup_gpu.py $(if $(WHEELS),--wheels $(WHEELS))
	$(GPU_BIN)/htam doctor
ifdef KERNELBENCH
	$(GPU_BIN)/python benchmarks/h200_first_loop.py --kernelbench $(KERNELBENCH) --out benchmarks/results/h200-first-loop.json
else
	$(GPU_BIN)/htam optimize $(DEMO) --backend cuda --coder template --require-faster --faster-than eager
	$(GPU_BIN)/python -m pytest -q -m gpu
endif

gpu-test: python
	@$(PYTHON) scripts/setup_gpu.py $(if $(WHEELS),--wheels $(WHEELS))
	$(GPU_BIN)/python -m pytest -q -m gpu

clean:
	rm -rf .venv .venv-gpu build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
