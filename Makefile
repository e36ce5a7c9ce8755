# One command each. `make setup` needs Python 3.11 (or 3.12) and pip's and apt's own package sources, nothing else.

PYTHON ?= python3
VENV := .venv
CONFIG ?= configs/quickstart.yaml
# A Debian archive; empty: the one in this machine's apt sources.
MIRROR ?=
# Desktop image: core, or full (core and all other applications). All tests need full.
IMAGE ?= core
# Build of torch: cpu or cuda; empty: what .venv already has, else what this machine shows. A login node needs it.
DEVICE ?=
# More package lists: develop (tests, checks), osworld (readers of OSWorld's judges); for example WITH="develop osworld".
WITH ?=
# For example ARGS="learner.optimizer.lr=1e-6", TESTS=tests/unit, BENCH=broker
FOR_TESTS ?=
# Markers of the tests that test-release plays; empty: all tests.
TIER ?=
ARGS ?=
TESTS ?=
# Tests played side by side (files, and groups of files that share a desktop): desktops mostly wait.
JOBS ?= 4
BENCH ?=
# Seconds for each target of make fuzz.
FUZZ_S ?= 300

# uv compiles no bytecode, so the first import does; without keeping it every process would compile torch and vllm again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup train test test-release check docs results bench soak fuzz report clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## make .venv, Apptainer, the desktop image and the model; skips what is there
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 is needed, this is %s\n    -> make setup PYTHON=python3.11" % sys.version.split()[0])'
	@$(PYTHON) -m computerrl.launch.setup.machine_setup --venv $(VENV) --image $(IMAGE) --mirror "$(MIRROR)" --device "$(DEVICE)" --with "$(WITH)" $(FOR_TESTS)

train: setup ## train CONFIG (default configs/quickstart.yaml) and write its report
	$(VENV)/bin/computerrl train $(CONFIG) $(ARGS)

PYTEST = $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
test: IMAGE := full
test-release: IMAGE := osworld
test test-release: FOR_TESTS := --for-tests
test test-release: WITH := develop osworld

test: setup ## the default tier: every guarantee, real desktops included
	$(PYTEST) -m "not release" $(TESTS) $(ARGS)

test-release: setup ## all tests (TIER="release or hypothesis": those that make test left out, and properties at length)
	$(PYTEST) $(if $(TIER),-m "$(TIER)") --hypothesis-profile=release $(TESTS) $(ARGS)

check: WITH := develop
check: setup ## ruff (rules and format), mypy and the import rule
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -q tests/unit/project/test_import_rule.py

docs: WITH := develop
docs: setup ## make the documentation site, which needs no network: build/docs/index.html
	$(VENV)/bin/python -m sphinx -q -W --keep-going -c docs/site -d .stamps/docs docs build/docs
	@echo "$(CURDIR)/build/docs/index.html"

results: setup ## write the tables of docs/results from their data
	$(VENV)/bin/python docs/site/result_tables.py

bench: setup ## print the figures (BENCH=NAME for one; without, all names)
	$(VENV)/bin/computerrl bench $(BENCH) $(ARGS)

soak: setup ## half an hour of random actions on 24 desktops
	$(VENV)/bin/computerrl bench soak_desktops $(ARGS)

fuzz: setup ## look for bytes that harm codec or broker, FUZZ_S seconds each (300); findings go to .fuzz/
	$(VENV)/bin/python -m pip install --quiet "$$(sed -n '/^fuzz =/{n;s/ //g;p}' setup.cfg)"
	@mkdir -p .fuzz/codec .fuzz/broker
	@for target in codec broker; do \
	  cp tests/golden/codec/*.bin tests/fuzz/corpus/*.bin .fuzz/$$target/; \
	  echo "$$target: $(FUZZ_S) s"; \
	  $(VENV)/bin/python tests/fuzz/fuzz_$$target.py -max_total_time=$(FUZZ_S) -max_len=65536 -timeout=25 -rss_limit_mb=2048 \
	    -print_final_stats=1 -artifact_prefix=.fuzz/found-$$target- .fuzz/$$target > .fuzz/$$target.log 2>&1; \
	  code=$$?; grep -aE "DONE|ERROR|Error|stat::" .fuzz/$$target.log; \
	  [ $$code -eq 0 ] || { tail -40 .fuzz/$$target.log; exit $$code; }; \
	done

report: ## write runs/latest/report.html again
	$(VENV)/bin/computerrl report latest

clean: ## remove what tools leave behind; keeps .venv, runs/ and the cache
	rm -rf .pytest_cache .mypy_cache .ruff_cache .stamps *.egg-info build
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
