# Each target sets up what it needs: a virtual environment in .venv with the locked development versions.
PYTHON ?= python3
BIN := .venv/bin
CLASSES := .venv/share/fkjoin/classes.jsa

.PHONY: demo test engine prepare check bench faults soak clean

demo: .venv/ready
	$(BIN)/fkjoin demo

# Those in integration/ wait a lot for brokers and clusters: the others run meanwhile, but for some that run after them, so that
# both come to their ends at about the same time.
AFTER := tests/test_optimizer.py tests/test_pruning.py tests/test_unread.py
test: export SPARK_SUBMIT_OPTS = -XX:SharedArchiveFile='$(CURDIR)/$(CLASSES)' -Xlog:disable
test: .venv/ready $(CLASSES) engine
	@( status=0; $(BIN)/python -m pytest -q integration || status=$$?; $(BIN)/python -m pytest -q $(AFTER) || status=$$?; \
	exit $$status ) >.integration.log 2>&1 & other=$$!; trap "kill $$other" INT TERM; \
	status=0; $(BIN)/python -m pytest -q tests $(AFTER:%=--ignore=%) || status=$$?; \
	echo "the tests on a broker and a cluster, and of the optimizer:"; wait $$other || status=$$?; cat .integration.log; exit $$status

# Before the tests, which keep the machine busy: an engine that comes up slowly gives up. Tests say why there is none.
engine:
	@docker/engine.sh >/dev/null 2>&1 || true

prepare: $(CLASSES)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready $(CLASSES)
	$(BIN)/python -m benchmarks.compare $(if $(PEERS),--peers $(PEERS))

.venv/ready: requirements.lock pyproject.toml
	@java -version >/dev/null 2>&1 || { echo "fkjoin needs Java 17 or 21: install a JDK (Debian: apt-get install openjdk-17-jdk-headless) and run make again"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Spark's classes, of which a JVM with the file has 3 s less to do when it starts: tests start seventy.
$(CLASSES): .venv/ready
	@FKJOIN_CLASSES='$(CURDIR)/$@' $(BIN)/fkjoin prepare

# All points of the matrices of which the tests try a sample: FAULT = sink_is_the_batch_join, … runs one of them.
faults: export SPARK_SUBMIT_OPTS = -XX:SharedArchiveFile='$(CURDIR)/$(CLASSES)' -Xlog:disable
faults: .venv/ready $(CLASSES) engine
	FKJOIN_EVERY_FAULT=1 $(BIN)/python -m pytest -q -m faults $(if $(FAULT),-k $(FAULT))

soak: .venv/ready
	$(BIN)/python -m benchmarks.endurance soak

clean:
	rm -rf .venv build dist *.egg-info fkjoin-demo benchmarks/out
