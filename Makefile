PYTHON ?= python3
RUN := .venv/bin/python
SAMPLE := build/sample-imagenet

# Modules of another environment would shadow what .venv has.
unexport PYTHONPATH PYTHONHOME

.PHONY: help demo test lint bench test-long test-oldest soak fuzz clean env

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 16

demo: env $(if $(IMAGENET),,$(SAMPLE).done) ## pictures to a store to batches, with rates (IMAGENET=/path: from a real tree)
	$(RUN) examples/demo.py "$(or $(IMAGENET),$(SAMPLE))"

test: env ## the tests
	$(RUN) -m pytest -n 2 --dist loadgroup

lint: env ## ruff and mypy
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

bench: env ## how fast it is, beside what bounds it and beside other loaders (first: 3 minutes to install those)
	$(RUN) bench/all.py

test-long: env ## the tests, those that take minutes too
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

# Every time, for it is quick: headers may have been installed since, or a second Pillow.
env:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'setup: error: Python 3.10 or newer is needed: make PYTHON=python3.11 ...' >&2; exit 1; }
	@$(PYTHON) tools/setup_env.py

# A tree without its .done was left half made.
$(SAMPLE).done: | env
	@rm -rf $(SAMPLE)
	.venv/bin/prep sample $(SAMPLE)
	@touch $@
