# Two commands from a fresh clone: `make demo` and `make test`. Needs Python 3.11 or later with venv, make and a C++ compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= ccnet.yaml

# uv does not read pip's settings: a folder of local wheels (a CPU build of torch, say) is handed on.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help demo test check bench clean
help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/demo.stamp ## Run the whole chain on a sample crawl: crawl -> shards
	$(BIN)/python -m pipeline run $(CONFIG)
	$(BIN)/python -m pipeline verify runs/$(basename $(notdir $(CONFIG)))

test: $(VENV)/test.stamp ## Run all the tests
	$(BIN)/python -m pytest

check: $(VENV)/test.stamp ## Lint, types, import rule, links: what CI runs beside the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_docs.py

bench: $(VENV)/test.stamp ## Measure what docs/benchmarks.md speaks of, and keep the results (half an hour)
	$(BIN)/python -m benchmarks.all --save

clean: ## Remove the environment and the demo's runs (the cache of models stays)
	rm -rf $(VENV) runs

$(VENV)/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=..."; exit 2; }
	@command -v c++ >/dev/null || { echo "A C++ compiler is needed: apt-get install g++ python3-dev"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv is needed: apt-get install python3-venv"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv

# Tests start some hundred processes. Where PYTHONDONTWRITEBYTECODE is set, each would compile torch and Ray anew.
$(VENV)/test.stamp: INSTALL_FLAGS := --compile-bytecode

$(VENV)/%.stamp: $(VENV)/bin/uv pyproject.toml constraints.txt
	$(BIN)/uv pip install --quiet $(INSTALL_FLAGS) --python $(BIN)/python -c constraints.txt -e '.[$*]'
	@touch $@
