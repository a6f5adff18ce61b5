PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# In a terminal pip shows what it downloads, because that takes minutes.
QUIET  := $(if $(MAKE_TERMOUT),,--quiet)

.PHONY: help demo test test-all test-gpu test-engines engines lint lint-page format bench figures docs docs-ready package \
  extras results clean

help:           ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# The virtual environment, made once and again when what it holds changes.
$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; minutes, as torch and CUDA are gigabytes)"
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("lerope needs Python 3.11 or newer; try make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## train RoPE and LeRoPE on this machine's Python sources, and compare
	@$(BIN)/lerope demo

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
test: lint      ## lint, types and every test that is quick and needs no GPU
	@$(PYTEST)

test-all: lint lint-page  ## what CI runs: all that needs no GPU (kills, browser, the demo, every study in small)
	@$(PYTEST) -m 'not gpu and not engines'

test-gpu: $(READY)  ## the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu --numprocesses 8

engines: $(READY)  ## an environment for each serving engine, in .engines (a few GB; what does not install here is left out)
	@$(BIN)/python tests/engines/environments.py .engines

test-engines: engines  ## exports in serving engines that are really run
	@$(BIN)/python -m pytest -m engines

lint: $(READY)  ## ruff (format and rules) and mypy
	@$(BIN)/ruff format --check --quiet . || (echo "run: make format"; exit 1)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

PAGE := src/lerope/report/page
lint-page:      ## eslint and prettier on the page's JavaScript and style; skipped with a sentence without npm
	@if ! command -v npm > /dev/null; then echo "there is no npm here: the page's JavaScript is not linted"; \
	elif ! npm install --no-save --no-package-lock --no-audit --no-fund --silent; then \
	  echo "npm could not install eslint: the page's JavaScript is not linted"; \
	else npm exec -- eslint $(PAGE) && (npm exec -- prettier --log-level warn --check '$(PAGE)/*.{js,css}' eslint.config.js || \
	  (echo "run: npm exec -- prettier --write '$(PAGE)/*.{js,css}' eslint.config.js"; exit 1)); fi

format: $(READY)  ## rewrite the code as ruff wants it
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

bench: $(READY)  ## CPU speed of rotations and of data preparation against peers (ten minutes, on an idle machine)
	@$(BIN)/python benchmarks/rotary_cpu.py
	@$(BIN)/python benchmarks/data_prepare.py

figures: $(READY)  ## the pictures in docs/
	@$(BIN)/python docs/figures/wavelengths.py
	@$(BIN)/python docs/figures/presets.py
	@$(BIN)/python docs/figures/band.py
	@$(BIN)/python docs/figures/distance.py
	@$(BIN)/python docs/figures/flow.py

# What builds the site comes into the same environment, but only for those who ask for it.
$(VENV)/.docs: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs-ready: $(VENV)/.docs

SITE ?= site
docs: $(VENV)/.docs  ## the documentation as a site, in site/; offline, warnings are errors
	@OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs $(SITE)
	@$(BIN)/python docs/check_site.py $(SITE)

DIST ?= dist
package: $(READY)  ## sdist and wheel in dist/, and the wheel tried in an environment that has only it and its dependencies
	@rm -rf $(DIST)
	@$(BIN)/python -m build --outdir $(DIST) . > /dev/null
	@$(BIN)/python -m venv $(DIST)/env
	@$(DIST)/env/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(DIST)/*.whl
	@$(DIST)/env/bin/python -I tests/installed.py src/lerope $(BIN)/python

extras: package  ## each extra in an environment of its own, in .extras, where it must do what it is for (15 GB)
	@$(BIN)/python tests/extras.py $(DIST)/*.whl .extras

results: $(READY)  ## docs/results.md, its figures and the README's table, from the archives in results/
	@$(BIN)/python results/page.py

clean:          ## remove the virtual environment and caches
	rm -rf $(VENV) $(DIST) $(SITE) jupyter_execute .engines .extras .mypy_cache .ruff_cache .pytest_cache .hypothesis
