# `make demo` and `make test` are all the set-up there is: both make .venv from the pinned constraints.
PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.installed

.PHONY: demo test test-long lint bench install clean

install: $(STAMP)

# torch comes first and pinned: what follows then finds its requirement met and installs no second build of it.
# Files, not phony targets: with an up-to-date stamp nothing is downloaded again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "headrace needs Python 3.11 or newer; %s is %d.%d: name another with make PYTHON=..." % (sys.executable, *v))'
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet -c constraints.txt torch numpy
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(PY) -m tools.demo --dir .demo

test: $(STAMP)
	$(PY) -m pytest -m 'not slow and not long'

test-long: $(STAMP)
	$(PY) -m pytest -m long

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(STAMP)
	$(PY) -m tools.bench pack
	$(PY) -m tools.bench feed

clean:
	rm -rf .venv .demo .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
