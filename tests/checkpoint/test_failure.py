"""A query's words: messages about its failure, made from Spark's own, and its display in programs and notebooks.

A stand-in takes the place of the JVM's query.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pickle
import pty
import re
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import StreamingQueryException

from fkjoin import errors
from fkjoin.checkpoint.claim import _end
from fkjoin.checkpoint.failure import QueryError, failure, told
from fkjoin.checkpoint.query import Query
from fkjoin.errors import thrown_at, users_frames
from fkjoin.metrics import Metrics
from fkjoin.spark.cause import Cause, innermost
from fkjoin.state import segments
from tests.support.progress import idle, progress

DRIVER = """Query [id = 1-2, runId = 3-4] terminated with exception: An error occurred in the user provided function. Reason: \
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/sql/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
  File "/venv/lib/python3.11/site-packages/fkjoin/sinks/batches.py", line 210, in write_batch
    write(batch, number)
    ^^^^^^^^^^^^^^^^^^^^
"""
WORKER = """pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/home/ada/job.py", line 12, in total
    return total + row["amount"]
           ~~~~~~^~~~~~~~~~~~~~~
  File "/home/ada/lib/rows.py", line 3, in get
    raise KeyError(name)
  File "/spark/python/lib/pyspark.zip/pyspark/types.py", line 9, in __getitem__
KeyError: 'amount'
"""
OF_USERS_SINK = """  File "/home/ada/sink.py", line 8, in write
    frame.collect()
"""
KILLED = """py4j.protocol.Py4JJavaError: An error occurred while calling o1160.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Python worker exited (crashed).
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handleError(PythonRunner.scala:7)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:3122)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handleError(PythonRunner.scala:7)
Caused by: java.io.EOFException
\t... 18 more
"""
OF_GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/home/ada/sink.py", line 9, in write
  |     raise ExceptionGroup("", errors)
  | ExceptionGroup:  (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: first
    +---------------- 2 ----------------
"""
LAST_OF_GROUP = """    | Traceback (most recent call last):
    |   File "/home/ada/rows.py", line 4, in put
    |     raise ValueError("second")
    | ValueError: second
    +------------------------------------
"""
OF_LIBRARIES = """pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pandas/core.py", line 5, in number
    raise ValueError("no number")
ValueError: no number
"""
END = " SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: q\nLogical Plan:\nValueError: no"
OF_JAVA = """py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Writing failed.
\tat org.apache.A.b(A.scala:1)
Caused by: java.io.IOException: first
\tat a.B.c(D.java:1)
Caused by: java.io.EOFException: the end
\tat a.B.c(D.java:1)
\t... 3 more
"""
RAISED = "pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] "
OURS = "fkjoin.errors.FkJoinError: "
OF_STATE = "fkjoin.state.errors."


def python(*parts: str) -> list[str]:
    """The message of a query whose function was called in the driver, with what it raised."""
    return ["".join((DRIVER, *parts, END))]


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        (
            python(OF_USERS_SINK, WORKER),
            Cause(
                "KeyError: 'amount'",
                None,
                ('job.py, line 12, in total: return total + row["amount"]', "rows.py, line 3, in get: raise KeyError(name)"),
            ),
        ),
        (
            python(OF_USERS_SINK, OF_LIBRARIES),
            Cause("ValueError: no number", None, ("sink.py, line 8, in write: frame.collect()",)),
        ),
        (python("AssertionError\n"), Cause("AssertionError")),
        (python(OF_JAVA), Cause("EOFException: the end", of_java=True)),
        (["Job aborted", "java.lang.NullPointerException"], Cause("NullPointerException", of_java=True)),
        (
            [f"{OF_GROUP}{LAST_OF_GROUP}{END}"],
            Cause("ValueError: second", None, ('rows.py, line 4, in put: raise ValueError("second")',)),
        ),
        (
            [f"{OF_GROUP}    | ValueError: third\n    +------------------------------------\n{END}"],
            Cause(
                "ExceptionGroup: (2 sub-exceptions) ValueError: first ValueError: third",
                None,
                ('sink.py, line 9, in write: raise ExceptionGroup("", errors)',),
            ),
        ),
        ([DRIVER], Cause("an exception without a name")),
        (python(RAISED, "of it: no SQLSTATE: P0001\n"), Cause("of it: no", of_java=True)),
        (["x", "[NO.SUCH_FILE] a is gone. SQLSTATE: 42K03", ""], Cause("a is gone.", of_java=True)),
        (["", ""], Cause("no reason is given")),
    ],
)
def test_the_innermost_cause_is_found(messages: list[str], cause: Cause) -> None:
    assert innermost(messages) == cause


WAYS: dict[str, tuple[list[str], str]] = {
    "KeyError: 'amount'": (python(WORKER), "fix that line, and start the query again: it"),
    "Python worker exited ": (python(OF_USERS_SINK, KILLED), "give the session more memory"),
    "MemoryError": (python(OF_USERS_SINK, "MemoryError: "), "give the session more memory"),
    "sink a: b: ": (python(OURS, "sink a: b: OSError: [Errno 28] No"), "make room on that"),
    "ValueError: Python worker exited unexpectedly: customer left": (
        python(OF_USERS_SINK, "ValueError: Python worker exited unexpectedly: customer left"),
        "fix that line",
    ),
    "TopicAuthorizationException: Not authorized to access topics: [orders]": (
        ["x", "org.a.TopicAuthorizationException: Not authorized to access topics: [orders]"],
        "ask Kafka's administrator to allow .* READ and DESCRIBE of the topics that are read, ",
    ),
    "RuntimeException: not a Parquet file": (
        ["error while reading file file:///z. x", "java.lang.RuntimeException: not a Parquet file"],
        "replace file:///z by an undamaged file of the same name, and start .*; or, to continue",
    ),
    "the topic no longer has offsets that were still": (["Some data may have been lost because"], "if retention deleted them"),
    "checkpoint /ck was made by a query that reads another number of tables": (
        ["There are [2] sources in the checkpoint offsets and now there are [3] sources"],
        "start this version of the job with a new checkpoint and an empty target",
    ),
    "the checkpoint was made by another job: x": (
        python(f"{OF_STATE}StoreMismatchError: the checkpoint was made by another job: x\n"),
        "as the first line says; the checkpoint is unchanged",
    ),
    "change log segment 3 is missing": (
        python(f"{OF_STATE}CorruptLogError: change log segment 3 is missing\n"),
        "`fkjoin state verify /ck` says what else is wrong; then restore it from a backup",
    ),
    "do this": (python(OURS, "do this\n"), "fix what the first line names, and start"),
    "Detected schema change in version 2": (
        ["[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 2: … SQLSTATE: 0"],
        "start .*: it continues .*; the checkpoint keeps the columns, so a new one is left out",
    ),
    "Error getting change data": (
        ["[DELTA_MISSING_CHANGE_DATA] Error getting change data for range [3 , 4]"],
        "set the table's property delta.enableChangeDataFeed to true; .*: start with a new",
    ),
    "If you never deleted it": (
        ["[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it, delete"],
        "if VACUUM, or the retention of the table's log, deleted what was still to be read: start",
    ),
    "it broke": (
        ["[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: it broke"],
        "fix the cause in the first line, and start .*; Spark's log, and this error's details",
    ),
}


def test_three_lines_say_which_query_where_and_what_to_do() -> None:
    """The second line names the batch, and the innermost line of the user or the file."""
    for problem, (messages, way) in WAYS.items():
        lines = told("out", "/ck", 7, messages)
        assert lines[0].startswith(f"query out failed: {problem}")
        assert lines[1].startswith("where: batch 7 of checkpoint /ck")
        assert re.match(f"what to do: {way}", lines[2])
        assert not any("\n" in line for line in lines)
    of_file = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/2.csv. SQLSTATE: KD001"
    of_worker = python(WORKER)
    for batch, messages, where in (
        (7, of_worker, "batch 7 of checkpoint /ck; rows.py, line 3, in get: raise KeyError(name)"),
        (7, ["x", of_file, "no header"], "batch 7 of checkpoint /ck; file file:///in/2.csv"),
        (None, ["x"], "checkpoint /ck"),
    ):
        assert told("out", "/ck", batch, messages)[1] == f"where: {where}"
    assert "continues with the batch after the last one" in told("out", "/ck", None, ["x"])[2]


def test_the_error_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(QueryError("three lines", "all that Spark says")))
    assert (str(error), error.details) == ("three lines", "all that Spark says")


def test_what_a_users_function_threw_says_where() -> None:
    def function() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as found:
        function()
    assert re.fullmatch(
        r'ValueError: no \(test_failure\.py, line \d+, in function: raise ValueError\("no"\)\)', thrown_at(found.value)
    )
    assert thrown_at(ValueError("no")) == "ValueError: no"


USERS = ("/home/ada/job.py", "/home/ada/fkjoin/job.py", "/tmp/spark-1/userFiles-2/deps.zip/rows.py")
OTHERS = (
    "/venv/lib/python3.11/site-packages/pandas/core.py",
    "/usr/lib/python3.11/json/decoder.py",
    "/spark/python/lib/pyspark.zip/pyspark/worker.py",
    "/spark/python/lib/py4j-0.10.9-src.zip/py4j/protocol.py",
    "<frozen importlib._bootstrap>",
    errors.__file__,
    segments.__file__,
)


def test_which_lines_are_the_users_own() -> None:
    frames = [f'  File "{file}", line 3, in f\n    x = 1\n' for file in (*OTHERS, *USERS)]
    names = [Path(file).name for file in USERS]
    assert list(users_frames("".join(frames))) == [f"{name}, line 3, in f: x = 1" for name in names]


ORDERS = {"orders": "e:1"}
BOTH = {**ORDERS, "clients": "w:1"}
SILENT: list[tuple[str, dict[str, str], str]] = [
    ("Timed out waiting for a node assignment", BOTH, "topics clients, orders at e:1 and w:1"),
    ("Timeout of 60000ms expired for partition orders-3", BOTH, "topic orders at e:1"),
    ("Expiring 3 record(s) for shop-out-0:120001 ms has passed", ORDERS, "topic shop-out"),
    ("Topic shop-out not present in metadata after 120000 ms.", {}, "topic shop-out"),
]


def test_silent_brokers_are_named_and_another_timeout_is_not_theirs() -> None:
    """Those that are read, and a topic that is written, which Java's messages name alone."""
    for message, topics, which in SILENT:
        first, _, way = told("joined", "/ck", 3, ["x", message], topics)
        assert first == f"query joined failed: the brokers of {which} do not answer ({message})"
        assert "check that these brokers run" in way
    first, _, way = told("joined", "/ck", 3, ["x", "Timeout of 30 s: the database is away"], ORDERS)
    assert first == "query joined failed: Timeout of 30 s: the database is away"
    assert "brokers" not in way


NOW = 1_767_225_660.0
"""00:01:00, a minute after the first batch of ``progress`` begins."""


class JavaQuery:
    """The JVM's side of a query."""

    def __init__(self, message: str, *events: Any) -> None:
        self.message, self.events, self.active, self.waits = message, list(events), True, 3

    def isActive(self) -> bool:  # noqa: N802
        return self.active

    def name(self) -> str:
        return "joined"

    def status(self) -> Any:
        status = {"message": self.message, "isDataAvailable": True, "isTriggerActive": True}
        return SimpleNamespace(json=lambda: json.dumps(status))

    def lastProgress(self) -> Any:  # noqa: N802
        return self.recentProgress()[-1] if self.events else None

    def recentProgress(self) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(json=lambda event=event: whole(event)) for event in self.events]

    def exception(self) -> Any:
        return SimpleNamespace(isDefined=lambda: False)

    def awaitTermination(self, ms: int | None = None) -> bool | None:  # noqa: N802
        self.waits -= 1
        self.active = self.waits > 0
        return None if ms is None else not self.active


def whole(event: Any) -> str:
    """The event, with all that PySpark asks for."""
    about = json.loads(event.json)
    rates = dict.fromkeys(("inputRowsPerSecond", "processedRowsPerSecond"), 1.0)
    lacks = {"runId": UUID, "batchDuration": 1, "stateOperators": [], **rates}
    of_source = {"description": "d", "startOffset": None, "numInputRows": 1, **rates}
    sources = [{**of_source, **source} for source in about["sources"]]
    return json.dumps({**lacks, **about, "id": UUID, "sources": sources, "sink": {"description": "d", "numOutputRows": 1}})


@pytest.fixture(autouse=True)
def _a_minute_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr("fkjoin.checkpoint.query.time.time", lambda: NOW)
    yield
    monkeypatch.undo()
    time.tzset()


UUID = "00000000-0000-0000-0000-000000000000"
BATCH = "batch 1 had 100 rows and took 0.5 s; 14 behind as of 00:00:01"

WORKS, ENDED = f"joined: works on batch 2; {BATCH}", f"joined: has ended; {BATCH}"
ASKS = "Getting offsets from KafkaV2[Subscribe[orders]]"
IDLE = BATCH.replace("14 behind as of 00:00:01", "9 behind as of 00:00:02")


def test_a_query_is_shown_as_a_line_that_says_what_it_does() -> None:
    """A query that waits shows its last batch, though Spark's last progress is of none."""
    events: tuple[Any, ...]
    for message, events, says in (
        ("Initializing sources", (), "joined: starts"),
        ("Processing new data", (), "joined: works on its first batch"),
        ("Processing new data", (progress(0), progress(1)), WORKS),
        ("Waiting for data to arrive", (progress(1),), f"joined: waits for data since 00:00:01; {BATCH}"),
        (ASKS, (progress(1),), f"joined: waits for data since 00:00:01; {BATCH}"),
        ("Waiting for data to arrive", (progress(1), idle(2), idle(2)), f"joined: waits for data since 00:00:01; {IDLE}"),
    ):
        assert repr(Query(JavaQuery(message, *events))) == says


def test_one_whose_sources_do_not_answer_does_not_say_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fkjoin.checkpoint.query.time.time", lambda: NOW + 60)
    says = "joined: asks its sources for new data, and has said nothing since 00:00:01"
    assert repr(Query(JavaQuery(ASKS, progress(1)))) == f"{says}; {BATCH}"
    long = json.loads(progress(1).json)
    long["durationMs"]["triggerExecution"] = 90_000
    batch = SimpleNamespace(json=json.dumps(long))
    assert "waits for data since 00:01:31" in repr(Query(JavaQuery(ASKS, batch)))
    about = json.loads(idle(2).json) | {"timestamp": "2026-01-01T00:01:50.000Z"}
    waits = Query(JavaQuery(ASKS, progress(1), SimpleNamespace(json=json.dumps(about))))
    assert repr(waits) == f"joined: waits for data since 00:00:01; {BATCH.partition(';')[0]}; 9 behind"


def test_one_that_has_ended_says_so_and_one_that_has_failed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = JavaQuery("Stopped", progress(1))
    ended.active = False
    assert repr(Query(ended)) == ENDED
    failed = QueryError("query joined failed: no: at all\nwhere: there\nwhat to do: fix that")
    monkeypatch.setattr("fkjoin.checkpoint.query.failure", lambda query: failed)

    fails = MagicMock(side_effect=StreamingQueryException("[STREAM_FAILED] Query [id = 1]"))
    java = JavaQuery("Terminated with exception")
    java.active = False
    java.awaitTermination = java.processAllAvailable = fails  # type: ignore[attr-defined,method-assign]
    query = Query(java)
    assert repr(query) == "joined: failed: no: at all"
    for call in (query.awaitTermination, lambda: query.awaitTermination(1), query.processAllAvailable):
        with pytest.raises(QueryError) as found:
            call()
        assert found.value is failed


def test_one_of_a_stopped_session_can_be_shown() -> None:
    assert repr(Query(None)).startswith("<fkjoin.checkpoint.query.Query object at ")  # type: ignore[arg-type]


def test_the_operators_of_the_last_batch_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads(progress(1).json)
    about["observedMetrics"]["fkjoin:regions"] = {"rows-in": 1200, "out": None}
    Query(JavaQuery("Waiting for data to arrive", SimpleNamespace(json=json.dumps(about)))).show()
    assert capsys.readouterr().out == (
        f"joined: waits for data since 00:00:01; {BATCH}\n"
        "operator  left-in  right-in  rows-in  stale-dropped  out\n"
        "--------  -------  --------  -------  -------------  ---\n"
        "joined         90        10        0              1   50\n"
        "regions         0         0    1,200              0    0\n"
    )
    Query(JavaQuery("Initializing sources")).show()
    assert capsys.readouterr().out == "joined: starts\n"


class Notebook:
    """IPython, as far as it is asked for: the lines that a cell shows, one over the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kernel: bool = True) -> None:
        self.shown: list[str] = []
        module, displays = ModuleType("IPython"), ModuleType("IPython.display")
        module.get_ipython = lambda: SimpleNamespace(kernel="a kernel" if kernel else None)  # type: ignore[attr-defined]
        displays.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", displays)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert (raw, display_id) == (True, True)
        self.shown.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, raw: self.shown.append(data["text/plain"]))


def test_a_notebook_that_waits_for_a_query_shows_its_progress_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, java = Notebook(monkeypatch), JavaQuery("Processing new data", progress(1))
    assert Query(java).awaitTermination() is None
    assert list(dict.fromkeys(notebook.shown)) == [WORKS, ENDED]
    assert notebook.shown.count(WORKS) == 3, "at first, and each second"


@pytest.fixture
def _seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes a second further whenever it is looked at."""
    now = itertools.count(0.0)
    monkeypatch.setattr("fkjoin.checkpoint.query.time.monotonic", lambda: next(now))


@pytest.mark.usefixtures("_seconds")
def test_a_time_that_is_given_holds_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Notebook(monkeypatch)
    java = JavaQuery("Processing new data", progress(1))
    assert Query(java).awaitTermination(2) is False
    assert java.waits == 2, "it waited once, a second"
    java.waits = 1
    assert Query(java).awaitTermination(20) is True


class Terminal:
    """A terminal that is standard error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
        self._outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self._inner = os.fdopen(inner, "w")
        monkeypatch.setattr(sys, "stderr", self._inner)

    def said(self) -> str:
        """All that it was told; it is closed then."""
        self._inner.write("end")
        self._inner.flush()
        said = b""
        while not said.endswith(b"end"):
            said += os.read(self._outer, 65_536)
        self._inner.close()
        os.close(self._outer)
        return said.decode().removesuffix("end")


def test_a_terminal_that_waits_for_a_query_shows_its_progress_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for width, shown in ((200, 199), (40, 39), (0, 200)):
        terminal = Terminal(monkeypatch, width)
        assert Query(JavaQuery("Processing new data", progress(1))).awaitTermination() is None
        before, after = WORKS[:shown], ENDED[:shown]
        assert terminal.said() == f"\r{before}\r{after.ljust(len(before))}\r\n", "once a batch, and at the end"


@pytest.mark.usefixtures("_seconds")
def test_a_terminal_keeps_no_line_of_a_query_that_goes_on_and_none_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, query = Terminal(monkeypatch, 200), Query(JavaQuery("Processing new data", progress(1)))
    assert query.awaitTermination(2) is False
    thread = threading.Thread(target=query.awaitTermination)
    thread.start()
    thread.join()
    assert terminal.said() == f"\r{WORKS}\r{' ' * len(WORKS)}\r"


def test_elsewhere_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch, kernel=False)
    java = JavaQuery("Processing new data", progress(1))
    Query(java).awaitTermination()
    assert java.waits == 2, "PySpark's own call"
    assert notebook.shown == []


def as_connect_says(event: str) -> str:
    """The event in the shape that a server gives it: rows as values and schema, offsets as texts, no sum of rows read."""
    about = json.loads(event)
    for source in about["sources"]:
        for name in ("endOffset", "latestOffset"):
            source[name] = None if source[name] is None else json.dumps(source[name])
    about["sources"][0]["numInputRows"], about["sources"][1]["numInputRows"] = about.pop("numInputRows"), 0
    for name, row in about["observedMetrics"].items():
        fields = [{"name": item, "type": "long", "nullable": True, "metadata": {}} for item in row]
        about["observedMetrics"][name] = {"values": list(row.values()), "schema": {"type": "struct", "fields": fields}}
    return json.dumps(about)


class ConnectServer:
    """A server of Spark Connect, as far as its client asks for a query."""

    def __init__(self, error: str | None, *events: Any) -> None:
        self.error, self.events, self.client = error, [as_connect_says(whole(event)) for event in events], self

    def execute_command(self, command: Any) -> Any:
        from pyspark.sql.connect.proto import StreamingQueryCommandResult

        asked, answer = command.streaming_query_command, StreamingQueryCommandResult()
        if asked.status:
            answer.status.is_active = self.error is None
            answer.status.status_message = "Waiting for data to arrive"
        elif asked.exception and self.error is not None:
            answer.exception.exception_message = self.error
        elif asked.recent_progress or asked.last_progress:
            answer.recent_progress.recent_progress_json.extend(self.events[-1:] if asked.last_progress else self.events)
        return None, {"streaming_query_command_result": answer}, None


def connected(error: str | None, *events: Any) -> Query:
    pytest.importorskip("grpc")
    from pyspark.sql.connect.streaming.query import StreamingQuery

    from fkjoin.checkpoint.query import shown

    session: Any = ConnectServer(error, *events)
    return shown(StreamingQuery(session, UUID, UUID, "joined"))


def test_a_query_of_spark_connect_is_shown_as_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    connected(None, progress(1), idle(2)).show()
    assert capsys.readouterr().out == (
        f"joined: waits for data since 00:00:01; {IDLE}\n"
        "operator  left-in  right-in  stale-dropped  out\n"
        "--------  -------  --------  -------------  ---\n"
        "joined         90        10              1   50\n"
    )


def test_a_query_of_spark_connect_that_has_failed_says_why() -> None:
    query = connected("StreamingQueryException: [STREAM_FAILED] Query [id = 1] terminated with exception: boom", progress(1))
    assert repr(query) == f"joined: failed: boom; {BATCH}"


def test_a_query_of_spark_connect_whose_claim_was_taken_over_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says nothing of it: at most that the query has ended."""
    query: Any = connected(None, progress(1))
    calls = ("awaitTermination", "processAllAvailable")
    for call in calls:
        monkeypatch.setattr(type(query).__mro__[2], call, lambda *_: None)
        assert getattr(query, call)() is None
    assert (query.exception(), failure(query)) == (None, None)
    why = "process 7 on elsewhere has taken over the claim on checkpoint /ck"
    _end(query, why, "/ck")
    lines = [f"query joined failed: {why}", "where: checkpoint /ck", "what to do: let only one process use the checkpoint: "]
    for found in (failure(query), query.exception()):
        assert all(map(str.startswith, str(found).split("\n"), lines))
    for call in calls:
        with pytest.raises(QueryError, match=f"^query joined failed: {why}\n"):
            getattr(query, call)()
    assert repr(query) == f"joined: failed: {why}; {BATCH}"


def test_what_spark_connect_says_of_a_batch_is_read_as_any_other() -> None:
    event = whole(progress(1))
    assert Metrics().take_json(as_connect_says(event), "q") == Metrics().take_json(event, "q")
