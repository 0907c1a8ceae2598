# Each target sets up what it needs: a virtual environment in .venv with the locked development versions.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test engine check bench faults soak clean

demo: .venv/ready
	$(BIN)/fkjoin demo

# Those in integration/ wait a lot for brokers and clusters: the others run meanwhile, but for some that run after them, so that
# both come to their ends at about the same time.
AFTER := tests/test_optimizer.py tests/test_pruning.py tests/test_unread.py
test: export SPARK_SUBMIT_OPTS = -XX:SharedArchiveFile='$(CURDIR)/.venv/classes.jsa' -Xlog:disable
test: .venv/ready .venv/classes.jsa engine
	@( status=0; $(BIN)/python -m pytest -q integration || status=$$?; $(BIN)/python -m pytest -q $(AFTER) || status=$$?; \
	exit $$status ) >.integration.log 2>&1 & other=$$!; trap "kill $$other" INT TERM; \
	status=0; $(BIN)/python -m pytest -q tests $(AFTER:%=--ignore=%) || status=$$?; \
	echo "the tests on a broker and a cluster, and of the optimizer:"; wait $$other || status=$$?; cat .integration.log; exit $$status

# Before the tests, which keep the machine busy: an engine that comes up slowly gives up. Tests say why there is none.
engine:
	@docker/engine.sh >/dev/null 2>&1 || true

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python -m benchmarks.compare $(if $(PEERS),--peers $(PEERS))

.venv/ready: requirements.lock pyproject.toml
	@java -version >/dev/null 2>&1 || { echo "fkjoin needs Java 17 or 21: install a JDK (Debian: apt-get install openjdk-17-jdk-headless) and run make again"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# The classes that Spark loads when it starts and joins, as a JVM has them in its memory: 3 s less for each of the seventy JVMs
# that tests start. A JVM that cannot use the file goes without, and the target is made once the JVM has written it (cat).
.venv/classes.jsa: .venv/ready
	-@SPARK_SUBMIT_OPTS="-XX:ArchiveClassesAtExit='$(CURDIR)/$@'" $(BIN)/fkjoin replay --engine spark --events-per-batch 100 \
	tests/traces/inner-move-between-two-live-rights.in.jsonl 2>&1 | cat >.venv/classes.log

faults: .venv/ready
	FKJOIN_EVERY_FAULT=1 $(BIN)/python -m pytest -q integration/test_faults.py integration/test_run.py -k "killed"

soak: .venv/ready
	$(BIN)/python -m benchmarks.endurance soak

clean:
	rm -rf .venv build dist *.egg-info fkjoin-demo benchmarks/out
