# make demo      three servers, one MongoDB, real traffic: see it work
# make serve     the demo server alone, to play with
# make test      every check and every test
# make lint      format, style, types and layers only
# make docs      the site, into .venv/docs/index.html
# make oldest    tests with the lowest version of each dependency
# make audit     whether what users install was withdrawn, or is known to be vulnerable
#
# make bench     the benchmarks
# make accuracy  what the accuracy page shows, again: an hour; LCG2005=FILE names the larger trace
# make guard     whether anything takes more instructions than it did
# make chaos     the long form of the fault tests
# make breakages whether the tests notice when the package is broken on purpose: ten minutes
# make fuzz      coverage-guided fuzzing, a minute for each target; FUZZ=600 takes ten
# make soak      ten minutes of load, on a protected server and on two that are not; SOAK=60 takes one
# make matrix    every version of Python and Authlib that is supported and here, and the wheel by itself
#
# Everything runs in .venv, which is made on first use and brought up to date when setup.cfg changes.
# Another interpreter: make PYTHON3=python3.12 test

PYTHON3 ?= python3
PYTHON := .venv/bin/python
INSTALL := $(PYTHON) -m pip install -qq --disable-pip-version-check --editable

# Processes that share the tests; seconds for each target of the fuzzer.
WORKERS ?= 2
FUZZ ?= 60

# Tests marked with a program that this machine lacks are left out, and that is said.
PROGRAMS := chromium promtool redis-server valgrind
MISSING := $(foreach program,$(PROGRAMS),$(if $(shell command -v $(program)),,$(firstword $(subst -, ,$(program)))))
LEFT_OUT := $(strip $(foreach mark,$(MISSING),$(if $(shell grep -rl --include='*.py' 'mark\.$(mark)\b' tests),$(mark))))
SPACE := $() $()

.PHONY: demo serve test lint docs oldest audit bench accuracy guard chaos breakages fuzz soak matrix clean
.DELETE_ON_ERROR:

demo: .venv/installed-demo
	@$(PYTHON) -m demo

serve: .venv/installed-demo
	@$(PYTHON) -m demo.serve

test: lint
	@test -z "$(LEFT_OUT)" || echo "Left out, because the program is not installed: the tests marked $(LEFT_OUT)"
	@$(PYTHON) -m pytest --quiet --numprocesses $(WORKERS) --dist worksteal --cov --cov-report=term:skip-covered \
		$(if $(LEFT_OUT),-m "not ($(subst $(SPACE), or ,$(LEFT_OUT)))")

docs: .venv/installed-docs
	@.venv/bin/sphinx-build --quiet --fail-on-warning --keep-going docs .venv/docs
	@echo "The site is in .venv/docs/index.html"

oldest: .venv/installed-oldest
	@PYTHONPATH=.venv/oldest $(PYTHON) -m pytest --quiet --numprocesses $(WORKERS) --dist worksteal \
		-p no:cacheprovider tests/flask_authlib tests/guard --ignore tests/flask_authlib/test_processes.py

audit: .venv/installed-test
	@$(PYTHON) .ci/audit.py

bench: .venv/installed-bench
	@$(PYTHON) -m benchmarks

accuracy: .venv/installed-bench
	@$(PYTHON) -m benchmarks accuracy ways replays --page

guard: .venv/installed-test
	@$(PYTHON) -m benchmarks --guard

chaos: .venv/installed-test
	@CHAOS=long $(PYTHON) -m pytest tests/chaos -m chaos

breakages: .venv/installed-test
	@$(PYTHON) -m tests.breakages

fuzz: .venv/installed-fuzz
	@$(PYTHON) -m tests.fuzz --seconds $(FUZZ)

soak: .venv/installed-test
	@$(PYTHON) -m benchmarks.soak

matrix:
	@$(PYTHON3) .ci/matrix.py

lint: .venv/installed-test
	@.venv/bin/ruff check --quiet --config config/ruff.toml .
	@.venv/bin/ruff format --quiet --check --config config/ruff.toml .
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports --no-cache >.venv/lint-imports.log 2>&1 || { cat .venv/lint-imports.log; exit 1; }
	@echo "ruff, mypy --strict and the import layers: no complaints"

clean:
	rm -rf .venv .venv-matrix

.venv/bin/python:
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "oauth_ratelimit needs Python 3.11 or later; $(PYTHON3) is $$($(PYTHON3) --version 2>&1)."; \
		echo "With another interpreter: make PYTHON3=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python cannot make virtual environments here. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PYTHON3) -m venv .venv

.venv/installed-demo: EXTRAS := demo
.venv/installed-test: EXTRAS := test
.venv/installed-bench: EXTRAS := bench,test
.venv/installed-docs: EXTRAS := docs,prometheus
.venv/installed-fuzz: EXTRAS := fuzz,test
.venv/installed-%: setup.cfg pyproject.toml | .venv/bin/python
	@echo "Installing into .venv ..."
	@$(INSTALL) '.[$(EXTRAS)]'
	@touch $@

# Laid over the rest by PYTHONPATH, so that it takes seconds.
.venv/installed-oldest: .venv/installed-test .ci/lowest.py
	@rm -rf .venv/oldest
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --no-warn-conflicts \
		--target .venv/oldest $$($(PYTHON) .ci/lowest.py cli prometheus)
	@touch $@
