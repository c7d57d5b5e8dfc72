PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Compiled once, not by each of the forty processes that tests start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo claims check test lint bench sweep-attack sweep-chips sweep-memory sweep-saved sweep-types sweep-export sweep-vllm sweep-positions sweep-settings sweep-explorer sweep-parallel docs docs-pages clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/milepost compare --jobs 2 --threads 1 --out out/demo

# What the demo is there to show, claim by claim, each by its interval.
claims: demo
	$(BIN)/milepost report out/demo --claims

# The core, in under two minutes; the lab, checkpoints, configurations and the rules of the house are left to `test`.
CORE := across backends call face memory methods numerics seams theory

check: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow and not gpu' $(CORE:%=tests/%)

test: $(READY)
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Random calls against a loop over pairs of tokens in float64; about half an hour.
sweep-attack: $(READY)
	$(BIN)/python -m tests.sweeps.attack --calls 5000

bench: $(READY)
	$(BIN)/python -m milepost.bench

# Sweeps: hours of checks that the tests run a sample of.

sweep-chips: $(READY)
	$(BIN)/python -m tests.sweeps.chips

sweep-memory: $(READY)
	$(BIN)/python -m tests.sweeps.memory

# Every served model type under every method, saved and read by stock transformers; positions in every kind of call.
sweep-saved: $(READY)
	$(BIN)/python -m tests.sweeps.saved --out docs/sweeps/saved.md

# Every causal model type of transformers: whether a small twin of it, extended, equals stock.
sweep-types: $(READY)
	$(BIN)/python -m tests.sweeps.types --out docs/sweeps/types.md

# Exported models in llama.cpp, onnxruntime and vLLM, as far as they are installed (pip install xllamacpp onnxruntime).
sweep-export: $(READY)
	$(BIN)/python -m tests.sweeps.export --out docs/sweeps/export.md

sweep-positions: $(READY)
	MILEPOST_SWEEP=1 $(BIN)/python -m pytest -n 2 tests/hf/test_positions.py

# Attention over 2 and 4 processes beside that of one: every method by every way; about half an hour.
sweep-parallel: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.sweeps.parallel --out docs/sweeps/parallel.md

# The explorer's page in a browser: times, memory and sizes.
sweep-explorer: $(READY)
	$(BIN)/python -m tests.sweeps.explorer

# Extended models in vLLM on the CPU; VLLM_PYTHON is the Python of an environment that has vLLM and milepost.
sweep-vllm:
	$(VLLM_PYTHON) -m tests.sweeps.served --kept out/served --out docs/sweeps/vllm.md

# Every setting of the tests that `make test` draws a sample of.
sweep-settings: $(READY)
	MILEPOST_SWEEP=1 $(BIN)/python -m pytest -n 3 --dist worksteal

# The guide and these pages as one site in out/site, every chapter run; needs Python 3.11 (guide/WRITING.md).
docs: $(VENV)/.docs docs-pages
	PYTHONPATH=. $(BIN)/python -m guide build

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

# The pages of docs/ that are written from the package and the stores.
docs-pages: $(READY)
	printf '# Every method\n\n`make docs` writes this page, from `milepost methods --markdown`.\n\n' > docs/methods.md
	$(BIN)/milepost methods --markdown >> docs/methods.md
	$(BIN)/python -m milepost.configs.names > docs/names.md
	$(BIN)/milepost report docs/results/trained --markdown docs/results/trained/tables.md > /dev/null
	$(BIN)/milepost report docs/results/rows --markdown docs/results/rows/tables.md > /dev/null

clean:
	rm -rf $(VENV) build dist out
