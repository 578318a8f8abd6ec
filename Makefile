PYTHON ?= python3
RUN := .venv/bin/python
SAMPLE := build/sample-imagenet
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' src/decodeonce/__init__.py)

# Modules of another environment would shadow what .venv has.
unexport PYTHONPATH PYTHONHOME

.PHONY: help demo test test-all lint docs linkcheck notebook dist image release-check bench peers test-oldest soak fuzz \
	lock lock-check clean env env-demo env-test env-dev

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 20

demo: env-demo $(if $(IMAGENET),,$(SAMPLE).done) ## pictures to a store to batches, with rates (IMAGENET=/path: from a real tree)
	$(RUN) examples/demo.py "$(or $(IMAGENET),$(SAMPLE))"

test: env-test ## the tests, in five minutes: every module, command and promise once
	$(RUN) -m pytest -n 2 --dist loadgroup

lint: env ## ruff and mypy
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

docs: env ## the documentation as a site, build/docs/index.html
	$(RUN) -m sphinx -W --keep-going -n -E -q -d build/doctrees docs build/docs

linkcheck: env ## do the documentation's links to other sites lead anywhere? It takes a network
	$(RUN) -m sphinx -W --keep-going -q -b linkcheck -d build/doctrees docs build/linkcheck

notebook: env ## examples/inspect_store.ipynb, run (STORE=/path: on that store)
	$(RUN) -m tools.setup_notebook
	@mkdir -p build/notebook
	@cp examples/inspect_store.ipynb build/notebook
	STORE="$${STORE:+$$(realpath -- "$$STORE")}" \
		build/notebook-venv/bin/jupyter-execute --inplace build/notebook/inspect_store.ipynb
	@echo 'Open build/notebook/inspect_store.ipynb'

dist: env ## what an index is given: dist/*.tar.gz, and the wheel built from it
	@rm -rf dist
	$(RUN) -m build --no-isolation
	$(RUN) -m twine check --strict dist/*

release-check: env ## is it ready to publish? Archives, their contents, and installs of them in new environments (minutes)
	$(RUN) -m pytest -m "" --timeout 1800 tests/test_packaging.py tests/test_release.py tests/test_containers.py

image: ## a container image (ENGINE=docker; IMAGE_FLAGS="--build-arg MARCH=x86-64-v3": docs/install.md)
	$(or $(ENGINE),podman) build -f containers/Dockerfile -t decodeonce:$(VERSION) --build-arg VERSION=$(VERSION) \
		$(IMAGE_FLAGS) .

bench: env ## how fast it is, beside what bounds it and beside other loaders (first: 10 minutes to install those)
	$(RUN) bench/all.py

peers: env ## other loaders alone: building and loading the same images, 70 minutes (first: 10 to install them)
	$(RUN) -m bench.peers

test-all: env ## the tests at full depth: crash points, hostile input, Slurm, network file systems, examples, documentation
	$(RUN) -m pytest -n 2 --dist loadgroup -m "" --timeout 1800

fuzz: env ## bytes that nobody chose, through every reader and decoder: 30 minutes (SECONDS=10: so long for each)
	$(RUN) -m tests.fuzz.run $(if $(SECONDS),--seconds $(SECONDS))

test-oldest: env ## the tests on the oldest versions that pyproject.toml allows (first: minutes to install those)
	$(RUN) -m tools.setup_oldest
	build/oldest-venv/bin/python -m pytest

soak: env ## does anything grow? 10 GB built, verified, streamed for half an hour (SECONDS=60: a minute), then in little memory
	$(RUN) bench/soak.py --seconds $(or $(SECONDS),1800)
	$(RUN) bench/bounded.py

clean: ## remove what these made, all but .venv
	rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis

lock: env ## resolve pyproject.toml into constraints.txt, for every declared Python
	$(RUN) -m tools.lock

lock-check: env ## check that constraints.txt resolves on every declared Python, without installing anything
	$(RUN) -m tools.lock --check

# Every time, since it is quick: headers may have been installed since, or a second Pillow.
env: env-dev
env-demo env-test env-dev:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'setup: error: Python 3.10 or newer is needed: make PYTHON=python3.11 ...' >&2; exit 1; }
	@$(PYTHON) tools/setup_env.py $(@:env-%=%)

# A tree without its .done was left half made.
$(SAMPLE).done: | env-demo
	@rm -rf $(SAMPLE)
	.venv/bin/prep sample $(SAMPLE)
	@touch $@
