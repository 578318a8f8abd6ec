PYTHON ?= python3
RUN := .venv/bin/python
SAMPLE := build/sample-imagenet
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' src/decodeonce/__init__.py)

# The first two can make Python import modules of another environment instead of those in .venv. With the third, each
# process compiles all that it imports: importing torch takes 4 s then, and 2 s without it.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all lint docs linkcheck notebook dist image release-check bench device-check peers test-oldest soak fuzz \
	lock lock-check clean env env-demo env-test env-dev

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 20

demo: env-demo $(if $(IMAGENET),,$(SAMPLE).done) ## build and load a small store (IMAGENET=/path: of your tree)
	$(RUN) examples/demo.py "$(or $(IMAGENET),$(SAMPLE))"

# Three processes, also on two cores, because tests wait for servers and children.
test: env-test ## run the tests (5 minutes): each module and guarantee once
	$(RUN) -m pytest -n 3 --dist loadgroup $(TESTS)

lint: env ## run ruff, mypy, relint on the documentation, zizmor
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(RUN) -m relint README.md docs/*.md docs/*/*.md docs/*/*/*.md
	.venv/bin/zizmor --offline --quiet --strict-collection .github

docs: env ## build the documentation site, build/docs/index.html
	$(RUN) -m sphinx -W --keep-going -n -E -q -d build/doctrees docs build/docs

linkcheck: env ## check links to other sites (needs a network)
	$(RUN) -m sphinx -W --keep-going -q -b linkcheck -d build/doctrees docs build/linkcheck

notebook: env ## run the notebook (STORE=/path: on that store)
	$(RUN) -m tools.setup_notebook
	@mkdir -p build/notebook
	@cp examples/inspect_store.ipynb build/notebook
	STORE="$${STORE:+$$(realpath -- "$$STORE")}" \
		build/notebook-venv/bin/jupyter-execute --inplace build/notebook/inspect_store.ipynb
	@echo 'Open build/notebook/inspect_store.ipynb'

dist: env ## build what is uploaded to an index: sdist and wheel
	@rm -rf dist
	$(RUN) -m build --no-isolation
	$(RUN) -m twine check --strict dist/*

release-check: ## run everything before a release: hours
	.ci/run demo lint pages all legs soak

image: ## build a container image (flags: docs/start/install.md)
	$(or $(ENGINE),podman) build -f containers/Dockerfile -t decodeonce:$(VERSION) --build-arg VERSION=$(VERSION) \
		$(IMAGE_FLAGS) .

bench: env ## run all benchmarks (the first run installs for 10 minutes)
	$(RUN) -m bench.all

# Without make env, because a machine with a GPU may have no network.
device-check: ## run all that needs a GPU: 8 minutes (DEVICE=cpu: a dry run)
	$(or $(wildcard $(RUN)),$(PYTHON)) -m bench.device_check $(if $(DEVICE),--device $(DEVICE)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(STEPS),--steps $(STEPS))

peers: env ## compare with other loaders: 70 minutes
	$(RUN) -m bench.peers

test-all: env ## run all tests (an hour; SEED=WORD: a sample of the long)
	$(RUN) -m pytest -n 2 --dist loadgroup --timeout 1800 $(if $(filter command line,$(origin SEED)),-m long --sample $(SEED),-m "")

fuzz: env ## fuzz all readers: 30 minutes (SECONDS=10: per target)
	$(RUN) -m tests.fuzz.run $(if $(SECONDS),--seconds $(SECONDS))

test-oldest: env ## run the tests on the oldest allowed packages (minutes)
	$(RUN) -m tools.setup_oldest
	@# Benchmarks and constraints.txt have newer packages.
	build/oldest-venv/bin/python -m pytest -n 2 --dist loadgroup --ignore tests/test_peers.py --ignore tests/test_packaging.py

soak: env ## look for leaks for half an hour (SECONDS=60: a minute)
	$(RUN) -m bench.soak --seconds $(or $(SECONDS),1800)
	$(RUN) -m bench.bounded

clean: ## remove all that these targets made, except .venv
	rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis

lock: env ## resolve pyproject.toml into constraints.txt
	$(RUN) -m tools.lock

lock-check: env ## check that constraints.txt resolves on every Python
	$(RUN) -m tools.lock --check

# setup_env.py runs every time, because it is quick. Since the last run, headers or a second Pillow may have been installed.
env: env-dev ## install everything for development into .venv
env-demo env-test env-dev:
	@$(PYTHON) tools/check_machine.py
	@$(PYTHON) tools/setup_env.py $(@:env-%=%)

# If the tree has no .done file, drawing it was interrupted.
$(SAMPLE).done: | env-demo
	@rm -rf $(SAMPLE)
	$(RUN) examples/sample.py $(SAMPLE)
	@touch $@
