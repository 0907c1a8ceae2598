# Each target sets up what it needs: a virtual environment in .venv with the locked development versions.
PYTHON ?= python3
BIN := .venv/bin
CLASSES := .venv/share/fkjoin/classes.jsa

.PHONY: demo test unit nightly environments compat engine prepare check bench faults proof soak release-check clean

demo: .venv/ready
	$(BIN)/fkjoin demo

# A process takes the next module as soon as it is done with one, and has one Spark session and one broker for all of its modules.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -q
SHARED := --numprocesses $(WORKERS) --dist loadfile

# The pure part, without a JVM.
unit: .venv/ready
	$(PYTEST) $(SHARED) -m "not spark and not nightly" tests

test faults: export SPARK_SUBMIT_OPTS = -XX:SharedArchiveFile='$(CURDIR)/$(CLASSES)' -Xlog:disable
test: .venv/ready $(CLASSES) engine
	@status=0; for folder in integration tests; do \
	$(PYTEST) $(SHARED) -m "not nightly" $$folder || status=1; done; exit $$status

# Older releases of Spark (compat.lock): an environment has its PySpark, and sees all else that .venv has.
# `make faults` tries them (tests/sessions/test_spark_versions.py).
SPARKS := $(shell sed -n 's/^pyspark==\(4\.[0-9]*\)\..*/\1/p' compat.lock)
environments: $(SPARKS:%=.venv-%/ready)

.venv-pandas-3/ready: PINNED = pandas==3
.venv-%/ready: PINNED = pyspark==$*.
.venv-%/ready: compat.lock .venv/ready
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps $$(grep '^$(PINNED)' compat.lock)
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		>$$(.venv-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth
	@touch $@

# What each release of Spark runs, and pandas 3. Left out is what is marked `newest`: what older ones do not have, and their plans.
# Where a Spark lacks what a test needs, the test is skipped with the words of the refusal.
ROOMS := $(addprefix tests/,api checkpoint codec files folds kafka lowering replay sinks spark stages testing \
	sessions/test_abilities.py sessions/test_words.py)
TOPICS := $(addprefix integration/,test_join.py test_aggregates.py test_postgres.py test_connect.py)
COMPAT := -q -m "not nightly and not newest"
compat: export FKJOIN_COMPAT = 1
compat: export PYTHONPATH = $(CURDIR)
compat: environments .venv-pandas-3/ready engine
	@status=0; for line in $(SPARKS) pandas-3; do echo "$$line:"; \
	.venv-$$line/bin/python -m pytest $(COMPAT) $(SHARED) $(ROOMS) || status=1; \
	.venv-$$line/bin/python -m pytest $(COMPAT) $(SHARED) $(TOPICS) || status=1; \
	FKJOIN_DELTA=1 .venv-$$line/bin/python -m pytest $(COMPAT) tests/analysis/test_delta_tables.py || status=1; \
	done; exit $$status

# Before the tests, which keep the machine busy: an engine that comes up slowly gives up. Tests say why there is none.
engine:
	@docker/engine.sh >/dev/null 2>&1 || true

prepare: $(CLASSES)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --exclude fkjoin --exclude state --exclude '*.md' .
	$(BIN)/ruff format --check --line-length 100 fkjoin state
	$(BIN)/ruff format --check --line-length 79 docs README.md examples/README.md
	$(BIN)/mypy
	$(PYTEST) tests/house/test_prose.py

bench: .venv/ready $(CLASSES)
	$(BIN)/python -m benchmarks.compare $(if $(PEERS),--peers $(PEERS))

.venv/ready: requirements.lock pyproject.toml
	@java -version >/dev/null 2>&1 || { echo "fkjoin needs Java 17 or 21: install a JDK (Debian: apt-get install openjdk-17-jdk-headless) and run make again"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "the locked versions need Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Spark's classes, of which a JVM with the file has 3 s less to do when it starts: tests start seventy.
$(CLASSES): .venv/ready
	@FKJOIN_CLASSES='$(CURDIR)/$@' $(BIN)/fkjoin prepare

# What takes hours, and must be green before a release.
nightly:
	@status=0; for target in faults compat proof; do $(MAKE) --no-print-directory $$target || status=1; done; exit $$status

# All points of the matrices of which the tests try a sample, laws on more examples, and tests that `make test` leaves out;
# FAULT=sink_is_the_batch_join runs one.
faults: .venv/ready $(CLASSES) engine $(if $(FAULT),,environments)
	@status=0; for folder in integration tests; do \
	FKJOIN_EVERY_FAULT=1 $(PYTEST) $(SHARED) -m "faults or nightly" $$folder $(if $(FAULT),-k $(FAULT)) || [ $$? = 5 ] || status=1; \
	done; exit $$status

# All orders of delivery of larger histories than the tests walk, and more histories of random delivery.
proof: .venv/ready
	FKJOIN_EVERY_FAULT=1 $(PYTEST) tests/stages/test_every_order.py tests/stages/test_multi_join.py

soak: .venv/ready
	$(BIN)/python -m benchmarks.endurance soak

# What a user gets of the last commit: some minutes, in which packages are fetched. docs/releasing.md says when.
release-check: .venv/ready
	$(BIN)/python -m tools.release_check

clean:
	rm -rf .venv .venv-* build dist *.egg-info fkjoin-demo benchmarks/out
