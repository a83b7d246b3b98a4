# make demo    three servers, one MongoDB, real traffic: see it work
# make test    every check and every test
# make serve   the demo server alone, to play with
# make bench   the benchmarks
# make chaos   the long form of the fault tests
# make lint    format, style, types and layers only
#
# Everything runs in .venv, which is made on first use and brought up to date when setup.cfg changes.
# Another interpreter: make PYTHON3=python3.12 test

PYTHON3 ?= python3
PYTHON := .venv/bin/python
INSTALL := $(PYTHON) -m pip install -qq --disable-pip-version-check --editable

# Tests marked with a program that this machine lacks are left out, and that is said.
PROGRAMS := chromium redis-server
MISSING := $(foreach program,$(PROGRAMS),$(if $(shell command -v $(program)),,$(firstword $(subst -, ,$(program)))))
LEFT_OUT := $(strip $(foreach mark,$(MISSING),$(if $(shell grep -rl --include='*.py' 'mark\.$(mark)\b' tests),$(mark))))
SPACE := $() $()

.PHONY: demo serve test bench chaos lint clean
.DELETE_ON_ERROR:

demo: .venv/installed-demo
	@$(PYTHON) -m oauth_ratelimit.demo

serve: .venv/installed-demo
	@$(PYTHON) -m oauth_ratelimit.demo.serve

test: lint
	@test -z "$(LEFT_OUT)" || echo "Left out, because the program is not installed: the tests marked $(LEFT_OUT)"
	@$(PYTHON) -m pytest --quiet --cov --cov-report=term:skip-covered \
		$(if $(LEFT_OUT),-m "not ($(subst $(SPACE), or ,$(LEFT_OUT)))")

bench: .venv/installed-test
	@$(PYTHON) -m benchmarks

chaos: .venv/installed-test
	@CHAOS=long $(PYTHON) -m pytest tests/chaos -m chaos

lint: .venv/installed-test
	@.venv/bin/ruff check --quiet --config config/ruff.toml .
	@.venv/bin/ruff format --quiet --check --config config/ruff.toml .
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports --no-cache >.venv/lint-imports.log 2>&1 || { cat .venv/lint-imports.log; exit 1; }
	@echo "ruff, mypy --strict and the import layers: no complaints"

clean:
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "oauth_ratelimit needs Python 3.11 or later; $(PYTHON3) is $$($(PYTHON3) --version 2>&1)."; \
		echo "With another interpreter: make PYTHON3=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python cannot make virtual environments here. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PYTHON3) -m venv .venv

.venv/installed-demo: setup.cfg pyproject.toml | .venv/bin/python
	@echo "Installing into .venv ..."
	@$(INSTALL) '.[demo]'
	@touch $@

.venv/installed-test: setup.cfg pyproject.toml | .venv/bin/python
	@echo "Installing into .venv ..."
	@$(INSTALL) '.[test]'
	@touch $@ .venv/installed-demo
