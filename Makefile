# make run     start a cluster here (ARGS="--brokers 5" passes options on)
# make drill   kill a broker, an executor and the driver under load, and count what was lost
# make check   linters and the quick tests, 2 minutes
# make test    linters, and what one waits for after a change: all rooms, real processes, Spark, 200 fresh seeds
# make trust   all other stories, attacks, hosts, planted bugs, 2,250 fresh seeds: two hours (TRUST_S=900 ends it sooner)
# make bench   measure everything, beside Kafka, for 28 to 42 minutes (QUICK=1: 7 to 11)
# make fuzz    a million damaged batches of every type of Arrow, 5 minutes (SEED=N repeats a run)
# make fresh   these seeds alone, 3 minutes and more (FROM=N begins where another run did)
# make setup   what every target needs; done once, and again when a pinned version changes
# make lock    choose versions and hashes of packages anew, after a change of setup.cfg
# make clean   remove what was built (the data in .data/ stays)

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run drill check units test trust bench fuzz fresh lint ruff mypy imports browser lock clean

PYTHON := python3.11
VENV := .venv
BIN := $(VENV)/bin
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
# Which files of which packages may be installed, by their hashes: `make lock` writes them anew.
LOCKED := .ci/locked
CODE = $(wildcard spark_replication jobs tests .ci/*.py)
ARGS ?=

# Compiled modules and rewritten tests are kept, whatever the shell says: every process here starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

# Spark's executors must use the Python that has the project's packages.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

help:
	@sed -n 's/^# make/make/p' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.classes ; @:

$(VENV)/.stamp: setup.cfg pyproject.toml .ci/delta_jars.py $(LOCKED)/project.txt $(LOCKED)/tools.txt
	@$(PYTHON) -c '' 2>/dev/null || { \
	    echo "Python 3.11 is missing: sudo apt-get install -y python3.11 python3.11-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "Python 3.11 cannot make virtual environments: sudo apt-get install -y python3.11-venv" >&2; exit 1; }
	@version=$$("$(JAVA)" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${version:-0}" -ge 17 ] || { \
	    echo "Java 17 or later is missing ($(JAVA) is $${version:-not there}): sudo apt-get install -y openjdk-17-jre-headless" >&2; \
	    exit 1; }
	@rm -f $@
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "setup 1/4: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "setup 2/4: installing Spark and Arrow, about 60 s the first time"
	@$(call install,project)
	@echo "setup 3/4: fetching Delta's jars, about 5 s the first time"
	@$(BIN)/python .ci/delta_jars.py
	@touch $@

# Measurements do without: they start Spark once.
$(VENV)/.classes: $(VENV)/.stamp .ci/java_classes.py
	@echo "setup 4/4: keeping what Java parses as Spark starts, about 30 s: each start takes less from then on"
	@$(BIN)/python .ci/java_classes.py 2>$(VENV)/java_classes.log || { cat $(VENV)/java_classes.log >&2; exit 1; }
	@touch $@

# What tests and linters need besides.
$(VENV)/.tested: $(VENV)/.stamp $(LOCKED)/test.txt
	@echo "setup: installing what tests need, about 20 s the first time"
	@$(call install,test)
	@touch $@

# What draws charts.
$(VENV)/.charts: $(VENV)/.stamp $(LOCKED)/notebook.txt
	@$(call install,notebook)
	@touch $@

# uv takes half of pip's time. It reads neither pip's settings nor its certificates: where it cannot install, pip can.
# pyspark comes as its source. What builds it is the locked setuptools, installed before: an isolated build would run
# whatever version the index has, without a look at its hash.
PIP_QUIET := --no-input --disable-pip-version-check --progress-bar off
define install
{ $(BIN)/python -m pip install --quiet $(PIP_QUIET) --require-hashes -r $(LOCKED)/tools.txt && \
    $(BIN)/uv pip install --python $(BIN)/python --no-build-isolation --require-hashes -r $(LOCKED)/$(1).txt || \
    $(BIN)/python -m pip install $(PIP_QUIET) --no-build-isolation --require-hashes -r $(LOCKED)/$(1).txt; } && \
    $(BIN)/python -m pip install --quiet $(PIP_QUIET) --no-deps --no-build-isolation -e .
endef

# Tests and charts have what the project has, in the same versions.
lock: setup
	@compile() { file=$(LOCKED)/$$1.txt; shift; echo "$$file"; $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --upgrade "$$@" -o $$file; }; \
	sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml >$(VENV)/build.in; \
	compile test setup.cfg $(VENV)/build.in --extra test && \
	project="--extra spark --extra delta --extra server" && \
	compile notebook setup.cfg $(VENV)/build.in $$project --extra notebook -c $(LOCKED)/test.txt && \
	compile project setup.cfg $(VENV)/build.in $$project -c $(LOCKED)/test.txt && \
	$(BIN)/uv --version | sed 's/^uv \([0-9.]*\).*/uv==\1/' >$(VENV)/uv.in && \
	compile tools $(VENV)/uv.in $(VENV)/build.in

# `exec`: signals reach the program itself, not a shell around it.
run: setup
	@exec $(BIN)/python jobs/start_cluster.py $(ARGS)

drill: setup
	@exec $(BIN)/python jobs/failover_drill.py $(ARGS)

# Linters run beside the tests, many of which wait for a moment: so there are more workers than processors, too.
check: $(VENV)/.tested
	@$(MAKE) --no-print-directory --keep-going -j2 lint units

units: $(VENV)/.tested
	@$(BIN)/python -m pytest -q -n 6 --dist worksteal --hypothesis-profile=quick --ignore=tests/live --ignore=tests/hosts -m "not slow" $(ARGS)

# Two workers (tests/conftest.py): tests with real processes in turn, and all others on what those leave.
WORKERS := -n 2 --dist loadscope --patient
test: lint browser setup
	@$(BIN)/python -m pytest $(WORKERS) -m "not trust" $(ARGS)

trust: browser setup $(VENV)/.tested
	@$(BIN)/python -m pytest $(WORKERS) -m trust tests/hosts tests/live tests/sim $(ARGS)

# The page is looked at in one. Where nobody can be asked (CI, as root, on Debian) it is installed.
browser:
	@for name in chromium chromium-browser google-chrome; do \
	    command -v $$name >/dev/null 2>&1 && exit 0; \
	done; \
	if [ -z "$$CI" ] || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then \
	    echo "Chromium is missing: sudo apt-get install -y chromium" >&2; exit 1; \
	fi; \
	echo "installing Chromium, about 60 s the first time"; \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium fonts-dejavu-core; } \
	    >$(VENV)/chromium.log 2>&1 </dev/null || { cat $(VENV)/chromium.log >&2; exit 1; }

bench: $(VENV)/.charts
	@exec $(BIN)/spark-replication bench all $(if $(QUICK),--quick) $(ARGS)

fresh: $(VENV)/.tested
	@$(if $(FROM),FRESH_SEEDS_FROM=$(FROM)) $(BIN)/python -m pytest -n 2 tests/sim/test_fresh_seeds.py

fuzz: $(VENV)/.tested
	@FUZZ_BATCHES=1000000 FUZZ_SEED=$(or $(SEED),$(shell date +%s)) $(BIN)/python -m pytest -q -n 2 --dist worksteal \
	    tests/unit/storage/test_every_type.py -k flood

# All linters speak, even if the first complains; mypy is the slow one, so the others run beside it.
lint: $(VENV)/.tested
	@$(MAKE) --no-print-directory --keep-going --output-sync=target -j2 mypy ruff imports

ruff: $(VENV)/.tested
	@$(BIN)/python -m ruff check --quiet $(CODE)
	@$(BIN)/python -m ruff format --quiet --check $(CODE) || { echo "ruff format would change files: $(BIN)/ruff format" >&2; exit 1; }

mypy: $(VENV)/.tested
	@$(BIN)/python -m mypy --no-error-summary $(CODE)

imports: $(VENV)/.tested
	@$(BIN)/lint-imports --no-logo >$(VENV)/imports.log 2>&1 || { cat $(VENV)/imports.log >&2; exit 1; }

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis \
	    spark-warehouse metastore_db derby.log
