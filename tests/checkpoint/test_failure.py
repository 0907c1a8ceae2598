"""Messages about a query that has failed, made from Spark's own."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from fkjoin import QueryError, errors
from fkjoin.checkpoint.failure import told
from fkjoin.errors import thrown_at, users_frames
from fkjoin.spark.cause import Cause, innermost
from fkjoin.state import segments

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
    "the topic no longer has offsets that were still": (
        ["Some data may have been lost because"],
        "if retention deleted them",
    ),
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


@pytest.mark.parametrize("problem", WAYS)
def test_three_lines_say_which_query_where_and_what_to_do(problem: str) -> None:
    messages, way = WAYS[problem]
    lines = told("out", "/ck", 7, messages)
    assert lines[0].startswith(f"query out failed: {problem}")
    assert lines[1].startswith("where: batch 7 of checkpoint /ck")
    assert re.match(f"what to do: {way}", lines[2])
    assert not any("\n" in line for line in lines)


def test_the_second_line_names_the_batch_and_the_innermost_line_of_the_user_or_the_file() -> None:
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


@pytest.mark.parametrize(
    ("message", "topics", "which"),
    [
        ("Timed out waiting for a node assignment", BOTH, "topics clients, orders at e:1 and w:1"),
        ("Timeout of 60000ms expired for partition orders-3", BOTH, "topic orders at e:1"),
        ("Expiring 3 record(s) for shop-out-0:120001 ms has passed", ORDERS, "topic shop-out"),
        ("Topic shop-out not present in metadata after 120000 ms.", {}, "topic shop-out"),
    ],
)
def test_silent_brokers_are_named(message: str, topics: dict[str, str], which: str) -> None:
    """Those that are read, and a topic that is written, which Java's messages name alone."""
    first, _, way = told("joined", "/ck", 3, ["x", message], topics)
    assert first == f"query joined failed: the brokers of {which} do not answer ({message})"
    assert "check that these brokers run" in way


def test_another_timeout_is_not_the_brokers() -> None:
    first, _, way = told("joined", "/ck", 3, ["x", "Timeout of 30 s: the database is away"], ORDERS)
    assert first == "query joined failed: Timeout of 30 s: the database is away"
    assert "brokers" not in way
