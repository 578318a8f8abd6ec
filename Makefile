PYTHON ?= python3
RUN := .venv/bin/python
SAMPLE := build/sample-imagenet
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' src/decodeonce/__init__.py)

# Both variables can make Python import modules of another environment instead of those in .venv.
unexport PYTHONPATH PYTHONHOME

.PHONY: help demo test test-all lint docs linkcheck notebook dist image release-check bench peers test-oldest soak fuzz \
	lock lock-check clean env env-demo env-test env-dev

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 20

demo: env-demo $(if $(IMAGENET),,$(SAMPLE).done) ## build a small store and load it, printing rates (IMAGENET=/path: from your own tree)
	$(RUN) examples/demo.py "$(or $(IMAGENET),$(SAMPLE))"

test: env-test ## run the tests (5 minutes): every module, command and guarantee once
	$(RUN) -m pytest -n 2 --dist loadgroup

lint: env ## run ruff and mypy
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

docs: env ## build the documentation site, build/docs/index.html
	$(RUN) -m sphinx -W --keep-going -n -E -q -d build/doctrees docs build/docs

linkcheck: env ## check the documentation's links to other sites (needs a network)
	$(RUN) -m sphinx -W --keep-going -q -b linkcheck -d build/doctrees docs build/linkcheck

notebook: env ## run examples/inspect_store.ipynb (STORE=/path: on that store)
	$(RUN) -m tools.setup_notebook
	@mkdir -p build/notebook
	@cp examples/inspect_store.ipynb build/notebook
	STORE="$${STORE:+$$(realpath -- "$$STORE")}" \
		build/notebook-venv/bin/jupyter-execute --inplace build/notebook/inspect_store.ipynb
	@echo 'Open build/notebook/inspect_store.ipynb'

dist: env ## build what is uploaded to an index: dist/*.tar.gz, and the wheel made from it
	@rm -rf dist
	$(RUN) -m build --no-isolation
	$(RUN) -m twine check --strict dist/*

release-check: env ## check the archives, their contents, and installs of them in new environments (minutes)
	$(RUN) -m pytest -m "" --timeout 1800 tests/test_packaging.py tests/test_release.py tests/test_containers.py

image: ## build a container image (ENGINE=docker; IMAGE_FLAGS="--build-arg MARCH=x86-64-v3": see docs/start/install.md)
	$(or $(ENGINE),podman) build -f containers/Dockerfile -t decodeonce:$(VERSION) --build-arg VERSION=$(VERSION) \
		$(IMAGE_FLAGS) .

bench: env ## run all benchmarks, other loaders included (the first run installs those: 10 minutes)
	$(RUN) bench/all.py

peers: env ## compare building and loading with other loaders: 70 minutes (the first run installs those: 10 minutes)
	$(RUN) -m bench.peers

test-all: env ## run all tests: crash points, hostile input, Slurm, network file systems, examples, documentation
	$(RUN) -m pytest -n 2 --dist loadgroup -m "" --timeout 1800

fuzz: env ## fuzz every reader and decoder: 30 minutes (SECONDS=10: seconds per target)
	$(RUN) -m tests.fuzz.run $(if $(SECONDS),--seconds $(SECONDS))

test-oldest: env ## run the tests on the oldest versions that pyproject.toml allows (the first run installs those: minutes)
	$(RUN) -m tools.setup_oldest
	build/oldest-venv/bin/python -m pytest

soak: env ## look for leaks: build, verify and stream 10 GB for half an hour (SECONDS=60: a minute), then load in little memory
	$(RUN) bench/soak.py --seconds $(or $(SECONDS),1800)
	$(RUN) bench/bounded.py

clean: ## remove all that these targets made, except .venv
	rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis

lock: env ## resolve pyproject.toml into constraints.txt, for every declared Python
	$(RUN) -m tools.lock

lock-check: env ## check that constraints.txt resolves on every declared Python, without installing anything
	$(RUN) -m tools.lock --check

# setup_env.py runs every time, because it is quick. Since the last run, headers or a second Pillow may have been installed.
env: env-dev
env-demo env-test env-dev:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'setup: error: Python 3.10 or newer is needed: make PYTHON=python3.11 ...' >&2; exit 1; }
	@$(PYTHON) tools/setup_env.py $(@:env-%=%)

# If the tree has no .done file, drawing it was interrupted.
$(SAMPLE).done: | env-demo
	@rm -rf $(SAMPLE)
	.venv/bin/prep sample $(SAMPLE)
	@touch $@
