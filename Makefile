# Two commands: `make demo` and `make test`. Both make .venv first, and use what is there the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start many processes, which would each compile what they import.
unexport PYTHONDONTWRITEBYTECODE
STAMP := $(VENV)/installed

.PHONY: demo test suite test-slow check docs lock schema clean

demo: $(STAMP)
	$(BIN)/coalface demo --out demo

# The types beside the tests: without its cache mypy takes half a minute of one core.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs=2 check suite

suite: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not gpu"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The site of docs/, into site/. A broken link, anchor or name of the API is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The lock is of everything, so nothing is resolved: --no-deps, and a check at the end that nothing is missing.
$(STAMP): pyproject.toml requirements.lock constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Coalface needs Python 3.11 or later: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	touch $(STAMP)

# After an upgrade in .venv. It does not install first: that would take the upgrade back.
lock:
	$(BIN)/python tools/lock.py

# After a change of the recipe's keys or of what is said of them.
schema: $(STAMP)
	$(BIN)/python tools/recipe_schema.py

clean:
	rm -rf $(VENV) demo build site *.egg-info .mypy_cache .pytest_cache .ruff_cache
