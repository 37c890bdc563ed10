# `make` lists the targets. Two environments: .venv for the broker, .venv-kernel for what user code
# finds in a sandbox. Both are made once, and again when the files they depend on change.

PYTHON ?= python3
BROKER := .venv
KERNEL := .venv-kernel
IMAGE ?= kernelbroker-kernel
BROKER_IMAGE ?= kernelbroker-broker
DIND_IMAGE ?= kernelbroker-dind
BASE_IMAGE ?= python:3.12-slim-bookworm

.DEFAULT_GOAL := help
.PHONY: help setup run demo image broker-image dind-image bundle test check docs bench lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(BROKER)/.server $(KERNEL)/.made ## Make both environments

run demo: export KERNELBROKER_LOCAL__KERNEL_PYTHON ?= $(CURDIR)/$(KERNEL)/bin/python

run: setup ## Serve on 127.0.0.1 and print how to try it
	@$(BROKER)/bin/kernelbroker-server

demo: setup ## Analyse a real data file in one session (starts a broker if none runs)
	@$(BROKER)/bin/python docs/demo.py

image: $(BROKER)/bin/python ## Build the sandboxes' image for docker, and their package as a wheel in dist/
	docker build --build-arg BASE_IMAGE=$(BASE_IMAGE) -t $(IMAGE) kernel_image
	$(BROKER)/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist ./kernel_image
	@rm -rf kernel_image/build kernel_image/*.egg-info
	@.ci/image_size $(IMAGE)

broker-image: ## Build the broker's own image, for compose/
	docker build $(BUILD_OPTIONS) --build-arg BASE_IMAGE=$(BASE_IMAGE) -t $(BROKER_IMAGE) -f compose/Dockerfile .

dind-image: ## Build an image of the broker with an engine of its own, upon broker-image
	docker build $(BUILD_OPTIONS) --build-arg BROKER_IMAGE=$(BROKER_IMAGE) -t $(DIND_IMAGE) -f compose/dind/Dockerfile .

bundle: ## Pack both images and an installer for machines without a registry, into dist/
	compose/offline/bundle $(IMAGE) $(BROKER_IMAGE)

test: $(BROKER)/.dev $(KERNEL)/.made ## All tests, with real kernels in real jails and, where an engine answers, containers
	@$(BROKER)/bin/python -m pytest

check: $(BROKER)/.dev $(KERNEL)/.made ## Style, types, layers, packaging
	$(BROKER)/bin/ruff check .
	$(BROKER)/bin/ruff format --check .
	$(BROKER)/bin/mypy sdk/kernelbroker broker/kernelbroker_server compose/engine_filter
	$(BROKER)/bin/mypy --python-executable $(KERNEL)/bin/python kernel_image/kernelbroker_kernel
	$(BROKER)/bin/lint-imports
	$(BROKER)/bin/python .ci/check_wheel.py

docs: $(BROKER)/.dev ## Write docs/configuration.md anew from the settings
	@$(BROKER)/bin/python docs/make_configuration.py

bench: $(BROKER)/.dev $(KERNEL)/.made ## The figures that the README quotes
	@for file in roundtrip lease stream files tables pool; do $(BROKER)/bin/python benchmarks/$$file.py || exit 1; done

lock: $(BROKER)/.dev ## Pin what both images are made of anew, each in its requirements.txt
	$(BROKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  kernel_image/requirements.in -o kernel_image/requirements.txt
	$(BROKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --extra server --extra docker setup.cfg compose/build.in -o compose/requirements.txt

clean: ## Remove both environments and what tools left behind
	rm -rf $(BROKER) $(KERNEL) build dist .*_cache .hypothesis *.egg-info

$(BROKER)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.12"; exit 1; }
	@echo "Making the broker's environment in $(BROKER)"
	@$(PYTHON) -m venv $(BROKER) || { rm -rf $(BROKER); exit 1; } # half of one would pass for it

$(BROKER)/.server: setup.cfg pyproject.toml | $(BROKER)/bin/python
	$(BROKER)/bin/python -m pip install --disable-pip-version-check -e '.[server]'
	@touch $@

$(BROKER)/.dev: setup.cfg pyproject.toml | $(BROKER)/bin/python
	$(BROKER)/bin/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $@ $(BROKER)/.server

$(KERNEL)/.made: kernel_image/requirements.txt
	@echo "Making the kernels' environment in $(KERNEL) (some 400 MB; a minute or two)"
	@$(PYTHON) -m venv $(KERNEL)
	$(KERNEL)/bin/python -m pip install --disable-pip-version-check --require-hashes -r $<
	@touch $@
