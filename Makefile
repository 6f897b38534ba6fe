# `make help` lists what there is. Everything runs in one virtual environment, $(VENV).

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
PIP_NO_INPUT ?= 1
export PIP_NO_INPUT

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints/dev.txt)

.DEFAULT_GOAL := help
.PHONY: help setup demo test sweep e2e lint format faults soak bench fleet generate verify pins images clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create the virtual environment and install everything, once

# torch goes first and alone, so that its choice of build does not depend on the rest.
$(READY): pyproject.toml constraints/dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); the first time this takes minutes"
	@$(PIP) $(TORCH)
	@$(PIP) -c constraints/dev.txt -e '.[operator,worker,dev]'
	@touch $@

demo: $(READY)  ## Serve the embedded model, draw a dozen prompts over HTTP, compare with plain diffusers
	@$(BIN)/python hack/demo.py

test: $(READY)  ## Run the tests, on two cores (ARGS="-k name" to choose, WORKERS=0 for one after the other)
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

sweep: $(READY)  ## Try many more inputs of each kind than `test` does (ARGS="-k name", or a file)
	@$(BIN)/python -m pytest -n $(WORKERS) -m sweep $(ARGS)

e2e: $(READY)  ## Test stages on a cluster: one from KUBE_ASSETS, or a throw-away KUBECONFIG with its IMAGE_REGISTRY
	@$(BIN)/python -m pytest --durations=30 tests/e2e $(ARGS)

lint: $(READY)  ## Style, types, import contracts, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python hack/check_sizes.py

format: $(READY)  ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

faults: $(READY)  ## Play every fault in every phase, layout and mode, then many orders of calls (ARGS choose: "mp 1")
	@mkdir -p build
	@OMP_NUM_THREADS=1 $(BIN)/python tests/faults/run.py $(ARGS) 2>build/faults.log || { echo "see build/faults.log"; exit 1; }
	@OMNISTAGE_TEST_ORDERS=500 $(BIN)/python -m pytest -q tests/integration/mp/test_mp_any_order.py

soak: $(READY)  ## Ten minutes of full load with aborts, drops and killed ranks; fails if anything leaks
	@mkdir -p build
	@$(BIN)/python -m benchmarks soak $(ARGS) 2>build/soak.log || { echo "see build/soak.log"; exit 1; }

bench: $(READY)  ## Measure beside plain diffusers; AGAINST=checkout measures beside that one (ARGS for the runner)
	@$(BIN)/python -m benchmarks $(if $(AGAINST),against "$(AGAINST)",engine) $(ARGS)

fleet: $(READY)  ## Measure the operator with 1,000 stages on played nodes, on a cluster as e2e takes it (ARGS for less)
	@$(BIN)/python -m benchmarks fleet $(ARGS)

generate: $(READY)  ## Write what is made from the code: the CRD, dashboards, pages and tables
	$(BIN)/python -m stage_api.crdgen
	$(BIN)/python hack/chart_values.py
	$(BIN)/python hack/dashboards.py
	$(BIN)/python hack/metric_pages.py
	$(BIN)/python hack/invariants.py

verify: $(READY)  ## Fail if a generated file or a checkpoint differs from its source
	$(BIN)/python -m stage_api.crdgen --check
	$(BIN)/python hack/chart_values.py --check
	$(BIN)/python hack/dashboards.py --check
	$(BIN)/python hack/metric_pages.py --check
	cd models/shapes && sha256sum --check --quiet SHA256SUMS
	cd models/digits && sha256sum --check --quiet SHA256SUMS

pins: $(READY)  ## Write constraints/*.txt from what is installed
	$(BIN)/python hack/pin.py

images:  ## Build the two images with buildah, podman or docker (hack/images says what can be set)
	@hack/images

clean:  ## Remove what was built; keep the virtual environment
	rm -rf build demo-output dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
