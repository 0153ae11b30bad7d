# Everything here runs on a machine with Python 3.11 or newer, pip, git and make.
.DEFAULT_GOAL := help
.PHONY: help setup demo test promises thorough newest lint format types smoke docs gpu build release clean

# The first interpreter that is new enough; a name may exist and still not run, so each is tried.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
# More extras: make setup EXTRAS=dev,cuda12
EXTRAS ?= dev
comma := ,
CONSTRAINTS ?= --constraint constraints.txt
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
# Images of containers often set it; then every start of Python compiles JAX's sources again, for seconds.
unexport PYTHONDONTWRITEBYTECODE
DEMO := runs/demo
SMOKE := runs/smoke

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install the package with its development tools (once)

# Some systems ship Python without ensurepip; then the system's pip installs into the environment.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "fedjax_ssl needs Python 3.11 or newer; name one with: make setup PYTHON=/path/to/python3"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	@touch $@

demo: setup  ## run the main job on the embedded digits from the start, with a page of its curves
	rm -rf $(DEMO)
	$(BIN)/python -m fedjax_ssl.main --config configs/digits_xclp.py --workdir $(DEMO)
	$(BIN)/fedjax-ssl report $(DEMO) --output $(DEMO)/report.html
	@echo "numbers: $(DEMO)/metrics.csv, $(DEMO)/summary.json"

test: setup  ## run the tests in two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# What the thorough tests need beside the development tools; without it they skip what they cannot try.
EVERYTHING := dev,docs,export,huggingface,sweep,tensorboard,tfds
# Runs over several processes take the cores for themselves: a process that waits too long for another one ends.
SEVERAL_PROCESSES := tests/runs/test_distributed.py tests/runs/test_distributed_methods.py
thorough:  ## run all tests that are not quick, for a night: every case of what make test shows by one
	$(MAKE) setup EXTRAS=$(EVERYTHING)
	$(BIN)/python -m pytest -m thorough -n 2 --dist loadfile --no-loadscope-reorder $(SEVERAL_PROCESSES:%=--ignore=%)
	$(BIN)/python -m pytest -m thorough $(SEVERAL_PROCESSES)

promises: setup  ## run one slow test of every kind of promise: a kill, a full disk, two processes, a vectorized sweep
	$(BIN)/python -m pytest -m promise

# Users have what the package index gives them today; constraints.txt says what it gave when it was written.
NEWEST ?= $(shell for p in python3.14 python3.13 python3.12 $(PYTHON); do \
	$$p -c '' >/dev/null 2>&1 && { echo $$p; break; }; done)
newest:  ## run the quick tests with the newest Python here and the newest JAX for it, in .venv-newest
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest PYTHON=$(NEWEST) CONSTRAINTS=

lint: setup  ## ruff: rules and format; packed places, long files, many arguments
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/style/packed.py

format: setup  ## let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## mypy
	$(BIN)/mypy

smoke: setup  ## run the main job for a few rounds on both embedded data sets
	rm -rf $(SMOKE)
	$(BIN)/python -m fedjax_ssl.main --config configs/femnist_xclp.py:glyphs --workdir $(SMOKE)/femnist_glyphs \
		--config.rounds=2 --config.eval_every=1 --config.method.warmup_rounds=1 --config.data.writers=20
	$(BIN)/python -m fedjax_ssl.main --config configs/digits_xclp.py --workdir $(SMOKE)/digits \
		--config.rounds=5 --config.eval_every=1 --config.method.warmup_rounds=1
	test -s $(SMOKE)/femnist_glyphs/summary.json && test -s $(SMOKE)/digits/partition.png

docs:  ## build the documentation into site/; a warning is an error
	$(MAKE) setup EXTRAS=dev,docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# On the GPU that is here, which nothing else may use; JAX's part for it: make gpu EXTRAS=dev,cuda12
TORCH ?= $(BIN)/python
gpu: setup  ## measure the GPU that is here and check results on it, into docs/speed.md
	$(BIN)/python -m experiments.benchmarks.gpu --torch $(TORCH) --write docs/speed.md

build: setup  ## build the wheel into dist/
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist .

# The wheel is built from the sdist, and tried alone: nothing of the checkout is on its path.
TRIAL := build/trial
release:  ## build wheel and sdist, check them, run the wheel alone, say what a person has to do
	$(MAKE) setup EXTRAS=dev,release
	rm -rf dist $(TRIAL)
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m venv $(TRIAL)/env
	$(TRIAL)/env/bin/python -m pip install --disable-pip-version-check --quiet $(CONSTRAINTS) dist/*.whl
	cd $(TRIAL) && env/bin/fedjax-ssl --version && env/bin/fedjax-ssl run digits_fedavg --rounds=2 --eval_every=1
	@echo
	@echo "ready in dist: $$(ls dist | xargs)"
	@grep -q '^\[project.urls\]' pyproject.toml || echo "  0. give pyproject.toml [project.urls], and mkdocs.yml extra.repository: the address of the project"
	@echo "  1. write the date behind the version in CHANGELOG.md and CITATION.cff, and commit"
	@echo "  2. make release, again from that commit"
	@echo "  3. git tag v$$(ls dist/*.whl | cut -d- -f2) && git push --tags"
	@echo "  4. $(BIN)/python -m twine upload dist/*"

clean:  ## remove the environment, caches, builds and the demo's and smoke test's runs
	rm -rf $(VENV) .venv-newest .cache .mypy_cache .ruff_cache .pytest_cache dist build $(DEMO) $(SMOKE)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
