# Everything runs in .venv, which the first target to need it creates and fills.
# A machine with python3 (3.11 or newer), pip and make is enough.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
# The environment's own pip, or the outer one aimed at it where the system's
# python comes without ensurepip.
PIP     = $$($(PY) -m pip --version >/dev/null 2>&1 && echo "$(PY) -m pip" \
          || echo "$(PYTHON) -m pip --python $(PY)")
# Tests of one file share programs (tests/conftest.py).
SHARE  := --dist loadfile --no-loadscope-reorder
QUIET  := --quiet --disable-pip-version-check

.PHONY: help venv demo test test-all test-compiled lint bench notebooks docs release clean

help:
	@echo "make demo       recompute published DP-SGD runs: report, JSON, picture"
	@echo "make test       the test suite"
	@echo "make test-all   the same, and tests that take longer"
	@echo "make test-compiled PYTEST_ARGS=tests/engines   a part, with compiled programs"
	@echo "make lint       its size, ruff and pyright"
	@echo "make bench      compare with dp-accounting, write benchmarks/RESULTS.md, SWEEPS.md"
	@echo "make notebooks  execute the notebooks anew"
	@echo "make docs       build the documentation's site in site/"
	@echo "make release    build and try what is published, in dist/"
	@echo "make clean      remove the environment, caches and demo outputs"

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fdp_jax needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
	  $(PYTHON) -m venv --clear --without-pip $(VENV)

$(VENV)/.installed: pyproject.toml | $(PY)
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@pip="$(PIP)"; $$pip install $(QUIET) -e '.[plot,dev]'
	@touch $@

$(VENV)/.oracle: pyproject.toml | $(VENV)/.installed
	@pip="$(PIP)"; $$pip install $(QUIET) -e '.[oracle]'
	@touch $@

$(VENV)/.notebook: pyproject.toml | $(VENV)/.installed
	@pip="$(PIP)"; $$pip install $(QUIET) -e '.[notebook]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.installed
	@pip="$(PIP)"; $$pip install $(QUIET) -e '.[docs]'
	@touch $@

$(VENV)/.release: pyproject.toml | $(VENV)/.installed
	@pip="$(PIP)"; $$pip install $(QUIET) -e '.[release]'
	@touch $@

venv: $(VENV)/.installed

demo: venv
	@$(PY) -m fdp_jax.cli demo --output demo

test: venv
	@$(PY) -m pytest -q -n auto $(SHARE) $(PYTEST_ARGS)

test-all: venv
	@$(PY) -m pytest -q -n auto $(SHARE) -m "slow or not slow" $(PYTEST_ARGS)

# As users' programs are compiled, and all of them: hours, so give it a part.
test-compiled: venv
	@FDP_JAX_TEST_DEFAULTS=1 FDP_JAX_INTERPRET=off \
	  $(PY) -m pytest -q -n auto $(SHARE) $(PYTEST_ARGS)

lint: venv
	@$(PY) tools/mass.py
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyright --pythonpath $(PY)

# Warm times are those of compiled programs.
bench: export FDP_JAX_INTERPRET := off
bench: $(VENV)/.oracle
	@$(PY) benchmarks/against_dp_accounting.py
	@$(PY) benchmarks/compile_cost.py
	@$(PY) benchmarks/sweep.py --quick

notebooks: $(VENV)/.notebook
	@for f in notebooks/*.py; do \
	  $(PY) -m jupytext --quiet --to ipynb --execute "$$f" || exit 1; done

docs: $(VENV)/.docs
	@$(PY) tools/docs_site.py .site
	@$(PY) -m zensical build --strict --clean
	@echo "The site is in site/: open site/index.html"

release: $(VENV)/.release
	@$(PY) tools/release.py

clean:
	@rm -rf $(VENV) .jax_cache .pytest_cache .ruff_cache demo dist dist-sbom \
	  .site .cache site
