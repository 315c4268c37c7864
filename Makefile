# Needs Python 3.11 to 3.13 with pip, and make; everything else goes into .venv.
# PYTHON=... chooses the interpreter, ISFED_DATA=... the folder of data sets.
# TORCH=... chooses the build of PyTorch: without a version pip may take one of several gigabytes.

VENV   := .venv
TORCH  ?= torch==2.13.0
LOWEST := .venv-lowest
NEWEST := .venv-newest
DIST   := .venv-dist
BIN    := $(VENV)/bin

# First of the usual names that runs and is Python 3.11 to 3.$(1): a name may exist without running.
find-python = $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; v = sys.version_info; sys.exit(not (v.major == 3 and 11 <= v.minor <= $(1)))' \
	2>/dev/null && echo $$p && break; done)
PYTHON        ?= $(call find-python,13)
PYTHON_LOWEST ?= $(call find-python,12)# the lowest versions have no wheels for 3.13

ifeq ($(origin ISFED_DATA),undefined)
ifneq ($(wildcard ../shared/data/.),)
ISFED_DATA := $(abspath ../shared/data)
endif
endif
ifneq ($(origin ISFED_DATA),undefined)
export ISFED_DATA
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install dev install-torch run test test-federation test-federation-loaded test-hosts test-torch test-report test-faults test-ray test-portable test-lowest test-newest check format bench study theory dist install-docs docs test-docs figures notebooks clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.installed  ## create .venv and install the project in it

dev: $(VENV)/.installed-dev  ## the same with the tools for tests and checks

run: install  ## the main job: reproduce the paper's regression experiment
	@echo "==> isfed reproduce regression"
	@$(BIN)/isfed reproduce regression --resume

test: dev  ## run the tests and the examples in docstrings
	@echo "==> pytest"
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

# Two files at a time, for their processes mostly wait; in the order of tests/network/conftest.py.
test-federation: $(VENV)/.installed-flower  ## run the tests of the Flower adapter, with real processes on loopback
	@echo "==> pytest tests/network tests/flower"
	@ISFED_TEST_FEDERATION=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		tests/network tests/flower

test-federation-loaded: $(VENV)/.installed-flower  ## the same three times in a row, beside two busy processes
	@echo "==> python tools/under_load.py --times 3 --busy 2 -- make test-federation"
	@$(BIN)/python tools/under_load.py --times 3 --busy 2 -- $(MAKE) test-federation

test-hosts: $(VENV)/.installed-flower  ## the same over network namespaces, each agent on a host with its own address (Linux, root)
	@echo "==> pytest tests/network/test_hosts.py"
	@if unshare --net true 2>/dev/null; then \
		ISFED_TEST_HOSTS=1 ISFED_TEST_FEDERATION=1 unshare --net $(BIN)/python -m pytest -rs tests/network/test_hosts.py; \
	else echo "tests/network/test_hosts.py was skipped: network namespaces cannot be made here (it takes root on Linux)"; fi

install-torch: $(VENV)/.installed-torch  ## the same with PyTorch, the build of TORCH=...

test-torch: $(VENV)/.installed-torch  ## check the types and run the tests of neural networks
	@echo "==> pyright -p pyright-torch.json"
	@$(BIN)/pyright -p pyright-torch.json
	@echo "==> pytest tests/torch src/isfed/torch, and the blocks of the documents that need PyTorch"
	@OMP_NUM_THREADS=1 ISFED_TEST_TORCH=1 $(BIN)/python -m pytest tests/torch src/isfed/torch 'tests/docs/test_blocks.py::test_blocks_are_run_or_say_why_not[README.md]' 'tests/docs/test_blocks.py::test_blocks_are_run_or_say_why_not[docs/networks.md]'

test-report: $(VENV)/.installed-report  ## run the tests of the report page, in Chromium where it is installed
	@echo "==> pytest tests/report"
	@ISFED_TEST_REPORT=1 $(BIN)/python -m pytest tests/report

test-ray: dev  ## run the tests on a local Ray cluster of two workers; skipped where Ray is missing
	@echo "==> pytest tests/studies/test_ray.py tests/torch/test_ray_pool.py"
	@ISFED_TEST_RAY=1 $(BIN)/python -m pytest -rs tests/studies/test_ray.py tests/torch/test_ray_pool.py

test-faults: dev  ## faults on purpose: kills, full disks, damaged files, bad inputs; FAULTS="--kills 20 ..." for fewer
	@echo "==> python tests/faults/main.py $(FAULTS)"
	@$(BIN)/python tests/faults/main.py $(FAULTS)

test-portable: dev  ## the same numbers under the code that NumPy, OpenBLAS and Numba have for other processors
	@echo "==> python tools/portable.py"
	@$(BIN)/python tools/portable.py

test-lowest: $(LOWEST)/.installed  ## run the tests with the lowest versions we promise to support
	@echo "==> pytest with the versions of requirements-lowest.txt"
	@NUMBA_CACHE_DIR=$(CURDIR)/$(LOWEST)/numba $(LOWEST)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-newest: $(NEWEST)/.installed  ## run the tests with the newest versions of everything that can be had today
	@echo "==> pytest with the newest versions"
	@$(NEWEST)/bin/python -m pip list --format freeze > $(NEWEST)/versions.txt
	@NUMBA_CACHE_DIR=$(CURDIR)/$(NEWEST)/numba $(NEWEST)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile

check: dev  ## format, lint, types and the length of the documents, changing nothing
	@echo "==> ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "==> ruff check"
	@$(BIN)/ruff check .
	@echo "==> pyright"
	@$(BIN)/pyright
	@echo "==> python tools/words.py"
	@$(BIN)/python tools/words.py

format: dev  ## format the code and mend what the linter can
	@echo "==> ruff check --fix"
	@$(BIN)/ruff check --fix-only .
	@echo "==> ruff format"
	@$(BIN)/ruff format .

bench: install  ## measure speed (benchmarks/speed/run.py)
	@echo "==> python benchmarks/speed/run.py"
	@$(BIN)/python benchmarks/speed/run.py

study: install  ## compare policies and designs (docs/make/policies.toml)
	@echo "==> isfed run docs/make/policies.toml"
	@$(BIN)/isfed run docs/make/policies.toml --resume

theory: install  ## theory against measurement: makes docs/theory.md and its appendix (about an hour)
	@echo "==> python docs/make/theory_study.py, isfed run docs/make/theory.toml, then theory_page.py"
	@$(BIN)/python docs/make/theory_study.py
	@$(BIN)/isfed run docs/make/theory.toml --out runs/theory --resume
	@$(BIN)/python docs/make/theory_page.py runs/theory

install-docs: $(VENV)/.installed-docs  ## the same with what makes the site and runs notebooks

docs: $(VENV)/.installed-docs  ## build the documentation site into site/; a broken link is an error
	@echo "==> mkdocs build --strict"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

test-docs: $(VENV)/.installed-docs  ## run the notebooks and the site's own tests
	@echo "==> pytest tests/docs tests/tools"
	@ISFED_TEST_DOCS=1 $(BIN)/python -m pytest tests/docs tests/tools

figures: install  ## make the figures of the README and of the concept pages
	@echo "==> python tools/figures.py"
	@$(BIN)/python tools/figures.py

notebooks: $(VENV)/.installed-docs  ## run the notebooks and keep their outputs in them
	@echo "==> python tools/site_notebooks.py"
	@$(BIN)/python tools/site_notebooks.py

dist: $(DIST)/.installed  ## build sdist and wheel, check both, and try the wheel in an empty environment
	@echo "==> python -m build"
	@rm -rf dist
	@$(DIST)/bin/python -m build --outdir dist . > $(DIST)/build.log 2>&1 || { cat $(DIST)/build.log >&2; exit 1; }
	@echo "==> twine check and check-wheel-contents"
	@$(DIST)/bin/twine check --strict dist/*
	@$(DIST)/bin/check-wheel-contents dist/*.whl
	@echo "==> the wheel in an empty environment"
	@$(PYTHON) -m venv --clear $(DIST)/empty
	@$(DIST)/empty/bin/python -m pip install --quiet dist/*.whl
	@cd $(DIST) && empty/bin/isfed --version && empty/bin/python $(CURDIR)/examples/first_steps.py

clean:  ## remove environments, caches and build products; results in runs/ stay
	@echo "==> removing environments, caches and build products"
	@rm -rf $(VENV) $(LOWEST) $(NEWEST) $(DIST) build dist site .pytest_cache .ruff_cache .hypothesis
	@find . -path ./.git -prune -o -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

# The stamps: an environment is installed again only when what it was made from has changed.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "==> installing isfed in $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "==> installing isfed and its development tools in $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-flower: pyproject.toml | $(BIN)/python
	@echo "==> installing isfed, its development tools and Flower in $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev,flower]'
	@touch $(VENV)/.installed $(VENV)/.installed-dev $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	@echo "==> installing isfed, its development tools and what makes the site in $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	@touch $(VENV)/.installed $(VENV)/.installed-dev $@

$(VENV)/.installed-torch: pyproject.toml | $(BIN)/python
	@echo "==> installing isfed, its development tools and $(TORCH) in $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev,torch]' '$(TORCH)'
	@touch $(VENV)/.installed $(VENV)/.installed-dev $@

$(VENV)/.installed-report: pyproject.toml | $(BIN)/python
	@echo "==> installing isfed, its development tools and what drives a browser in $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev,report-test]'
	@touch $(VENV)/.installed $(VENV)/.installed-dev $@

$(LOWEST)/.installed: pyproject.toml requirements-lowest.txt | $(LOWEST)/bin/python
	@echo "==> installing isfed with the lowest versions in $(LOWEST)"
	@$(LOWEST)/bin/python -m pip install --quiet --constraint requirements-lowest.txt --editable '.[dev]'
	@touch $@

$(NEWEST)/.installed: pyproject.toml | $(NEWEST)/bin/python
	@echo "==> installing isfed with the newest versions in $(NEWEST)"
	@$(NEWEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
	@touch $@

$(DIST)/.installed: | $(DIST)/bin/python
	@echo "==> installing the tools for a release in $(DIST)"
	@$(DIST)/bin/python -m pip install --quiet build twine check-wheel-contents
	@touch $@

$(BIN)/python:
	$(call make-venv,$(VENV),$(PYTHON),3.11 to 3.13,PYTHON)

$(LOWEST)/bin/python:
	$(call make-venv,$(LOWEST),$(PYTHON_LOWEST),3.11 or 3.12,PYTHON_LOWEST)

$(NEWEST)/bin/python:
	$(call make-venv,$(NEWEST),$(PYTHON),3.11 to 3.13,PYTHON)

$(DIST)/bin/python:
	$(call make-venv,$(DIST),$(PYTHON),3.11 to 3.13,PYTHON)

# folder, interpreter, what would do, the variable to set
define make-venv
	@test -n "$(2)" || { echo "error: no Python $(3) found; install one, or name it: make $(4)=/path/to/python" >&2; exit 1; }
	@echo "==> creating $(1) with $(2)"
	@$(2) -m venv --clear $(1)
endef
