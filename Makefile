# Each target sets up what it needs: a virtual environment in .venv with the locked development versions.
PYTHON ?= python3
BIN := .venv/bin
CLASSES := .venv/share/fkjoin/classes.jsa

.PHONY: demo test engine prepare check bench faults soak clean

demo: .venv/ready
	$(BIN)/fkjoin demo

# Three lanes at a time: tests on brokers and databases, and those that start processes, wait a lot, while others keep the
# machine busy. Each of these two goes on with some that do not wait, so that all three come to their ends at about the same time.
BROKERS = integration $(PROCESSES:%=--ignore=%)
AFTER_BROKERS := $(addprefix tests/,plan/test_optimizer.py plan/test_column_pruning.py plan/test_workers_evaluate_steps.py \
	plan/test_golden_plans.py plan/test_running.py lowering/test_multi_join.py api/test_aggregates.py)
PROCESSES := $(addprefix integration/test_,faults.py run.py page.py image.py)
AFTER_PROCESSES := $(addprefix tests/,cli/test_termination.py api/test_examples.py sessions/test_class_archive.py cli/test_commands.py \
	house/test_docs.py checkpoint/test_saved_state.py sinks/test_several_sinks.py sinks/test_restored_checkpoint.py \
	analysis/test_written.py lowering/test_rows_that_throw.py files)
REST = tests $(AFTER_BROKERS:%=--ignore=%) $(AFTER_PROCESSES:%=--ignore=%)
PYTEST := $(BIN)/python -m pytest -q
test: export SPARK_SUBMIT_OPTS = -XX:SharedArchiveFile='$(CURDIR)/$(CLASSES)' -Xlog:disable
test: .venv/ready $(CLASSES) engine
	@lane() { status=0; $(PYTEST) $$1 || status=1; $(PYTEST) $$2 || status=1; return $$status; }; \
	lane "$(BROKERS)" "$(AFTER_BROKERS)" >.brokers.log 2>&1 & brokers=$$!; \
	lane "$(PROCESSES)" "$(AFTER_PROCESSES)" >.processes.log 2>&1 & processes=$$!; \
	trap "kill $$brokers $$processes" INT TERM; status=0; $(PYTEST) $(REST) || status=1; \
	echo "on brokers and databases:"; wait $$brokers || status=1; cat .brokers.log; \
	echo "that start processes:"; wait $$processes || status=1; cat .processes.log; exit $$status

# Before the tests, which keep the machine busy: an engine that comes up slowly gives up. Tests say why there is none.
engine:
	@docker/engine.sh >/dev/null 2>&1 || true

prepare: $(CLASSES)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
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

# All points of the matrices of which the tests try a sample, and laws on more examples; FAULT=sink_is_the_batch_join runs one.
faults: export SPARK_SUBMIT_OPTS = -XX:SharedArchiveFile='$(CURDIR)/$(CLASSES)' -Xlog:disable
faults: .venv/ready $(CLASSES) engine
	@status=0; for folder in integration tests; do \
	FKJOIN_EVERY_FAULT=1 $(PYTEST) -m faults $$folder $(if $(FAULT),-k $(FAULT)) || [ $$? = 5 ] || status=1; done; exit $$status

soak: .venv/ready
	$(BIN)/python -m benchmarks.endurance soak

clean:
	rm -rf .venv build dist *.egg-info fkjoin-demo benchmarks/out
