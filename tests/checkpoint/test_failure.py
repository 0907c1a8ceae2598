"""Messages about a query that has failed, made from Spark's own."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from fkjoin import QueryError, errors
from fkjoin.checkpoint.failure import told
from fkjoin.errors import set_aside, thrown_at, users_frames
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
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times, most recent failure: \
Lost task 0.0 (TID 2): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handleError(PythonRunner.scala:777)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:3122)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handleError(PythonRunner.scala:777)
Caused by: java.io.EOFException
\t... 18 more
"""
OF_USER = """  File "/home/ada/sink.py", line 9, in write
    raise ValueError(words)
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


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        (
            [f"{DRIVER}{OF_USERS_SINK}{WORKER}{END}"],
            Cause(
                "KeyError: 'amount'",
                None,
                ('job.py, line 12, in total: return total + row["amount"]', "rows.py, line 3, in get: raise KeyError(name)"),
            ),
        ),
        (
            [f"{DRIVER}{OF_USERS_SINK}{OF_LIBRARIES}{END}"],
            Cause("ValueError: no number", None, ("sink.py, line 8, in write: frame.collect()",)),
        ),
        ([f"{DRIVER}AssertionError\n{END}"], Cause("AssertionError")),
        (
            [f"{DRIVER}fkjoin.state.errors.CorruptLogError: change log segment 3 is missing\n{END}"],
            Cause("change log segment 3 is missing", "CorruptLogError"),
        ),
        (
            [
                f"{DRIVER}py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.\n"
                ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Writing failed.\n\tat org.apache.A.b(A.scala:1)\n"
                "Caused by: java.io.IOException: first\n\tat a.B.c(D.java:1)\n"
                f"Caused by: java.io.EOFException: the end\n\tat a.B.c(D.java:1)\n\t... 3 more\n{END}"
            ],
            Cause("EOFException: the end", of_java=True),
        ),
        ([f"{DRIVER}{KILLED}{END}"], Cause("Python worker exited unexpectedly (crashed).", of_java=True)),
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
        (
            [
                f"{DRIVER}pyspark.errors.exceptions.captured.SparkRuntimeException: "
                f"[USER_RAISED_EXCEPTION] joiner of it: no SQLSTATE: P0001\n{END}"
            ],
            Cause("joiner of it: no", of_java=True),
        ),
        (
            [
                "Query [id = 1-2, runId = 3-4] terminated with exception: x",
                "Job aborted",
                "[NO.SUCH_FILE] a is gone. SQLSTATE: 42K03",
                "",
            ],
            Cause("a is gone.", of_java=True),
        ),
        (
            ["[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: it broke"],
            Cause("it broke", of_java=True),
        ),
        (["", ""], Cause("no reason is given")),
    ],
)
def test_the_innermost_cause_is_found(messages: list[str], cause: Cause) -> None:
    assert innermost(messages) == cause


@pytest.mark.parametrize(
    ("messages", "what", "way"),
    [
        (
            [f"{DRIVER}fkjoin.errors.FkJoinError: extractor of orders, key o1: KeyError: 'c'{set_aside('rows')}\n{END}"],
            "extractor of orders, key o1: KeyError: 'c'",
            r'set such rows aside, with on_error="dead-letter" for the table; or fix what is wrong; then start the query',
        ),
        (
            [f"{DRIVER}{WORKER}{END}"],
            "KeyError: 'amount'",
            "fix that line, and start the query again: it continues with this batch",
        ),
        (
            [f"{DRIVER}{OF_USERS_SINK}{KILLED}{END}"],
            "Python worker exited unexpectedly",
            "give the session more memory",
        ),
        ([f"{DRIVER}{OF_USER}MemoryError: {END}"], "MemoryError", "give the session more memory"),
        (
            [f"{DRIVER}{OF_USER}fkjoin.errors.FkJoinError: sink a: b: OSError: [Errno 28] No{END}"],
            "sink a: b: ",
            "make room on that",
        ),
        (
            [f"{DRIVER}{OF_USER}ValueError: Python worker exited unexpectedly: customer left{END}"],
            "ValueError: Python worker exited unexpectedly: customer left",
            "fix that line",
        ),
        (
            ["x", "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [orders]"],
            "TopicAuthorizationException: Not authorized to access topics: [orders]",
            r"ask Kafka's administrator to allow .* READ and DESCRIBE of the topics that are read, WRITE",
        ),
        (
            ["Encountered error while reading file file:///in/z.parquet. x", "java.lang.RuntimeException: not a Parquet file"],
            "RuntimeException: not a Parquet file",
            "replace file:///in/z.parquet by an undamaged file of the same name, and start .*; or, to continue without it",
        ),
        (
            ["Some data may have been lost because"],
            "the topic no longer has offsets that were still",
            "if retention deleted them",
        ),
        (
            ["There are [2] sources in the checkpoint offsets and now there are [3] sources"],
            "checkpoint /ck was made by a query that reads another number",
            "start this version of the job with a new checkpoint and an empty target",
        ),
        (
            [f"{DRIVER}fkjoin.state.errors.StoreMismatchError: the checkpoint was made by another job: x\n{END}"],
            "the checkpoint was made by another job: x",
            "as the first line says; the checkpoint is unchanged",
        ),
        (
            [f"{DRIVER}fkjoin.state.errors.CorruptLogError: change log segment 3 is missing\n{END}"],
            "change log segment 3 is missing",
            "`fkjoin state verify /ck` says what else is wrong; then restore it from a backup",
        ),
        ([f"{DRIVER}fkjoin.errors.FkJoinError: do this\n{END}"], "do this", "fix what the first line names, and start"),
        (
            ["error while reading file file:///in/b.parquet. x", "column: [x, a], physicalType: INT64, logicalType: int"],
            "file:///in/b.parquet: column x, a is INT64 in it, but must be read as int",
            "write that file again, under its name, with the types of the table, and start the query again: it continues",
        ),
        (
            ["assertion failed: Invalid batch: value#0 != value#262,region#263 SQLSTATE: XXKST"],
            "folders with the names of columns, such as region=eu, were added after the query was started",
            "start the query again: it continues with this batch, and reads these columns if schema= names them",
        ),
        (
            ["[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 2: … SQLSTATE: KD007"],
            "Detected schema change in version 2",
            "start the query again: it continues with this batch; the checkpoint keeps the columns, so a new one is left out",
        ),
        (
            ["[DELTA_MISSING_CHANGE_DATA] Error getting change data for range [3 , 4]"],
            "Error getting change data",
            "set the table's property delta.enableChangeDataFeed to true; .*: start with a new checkpoint and an empty target",
        ),
        (
            ["[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it, … delete its checkpoint"],
            "If you never deleted it",
            "if VACUUM, or the retention of the table's log, deleted what was still to be read: start with a new checkpoint",
        ),
        (
            ["it broke"],
            "it broke",
            "fix the cause in the first line, and start the query again.*; Spark's log, and this error's details",
        ),
    ],
)
def test_three_lines_say_which_query_where_and_what_to_do(messages: list[str], what: str, way: str) -> None:
    lines = told("out", "/ck", 7, messages)
    assert lines[0].startswith(f"query out failed: {what}")
    assert lines[1].startswith("where: batch 7 of checkpoint /ck")
    assert re.match(f"what to do: {way}", lines[2])
    assert not any("\n" in line for line in lines)


def test_the_second_line_names_the_batch_and_the_innermost_line_of_the_user_or_the_file() -> None:
    of_file = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/2.csv. SQLSTATE: KD001"
    for batch, messages, where in (
        (7, [f"{DRIVER}{WORKER}{END}"], "batch 7 of checkpoint /ck; rows.py, line 3, in get: raise KeyError(name)"),
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


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/ada/job.py", True),
        ("/home/ada/fkjoin/job.py", True),
        ("/tmp/spark-1/userFiles-2/deps.zip/rows.py", True),
        ("/venv/lib/python3.11/site-packages/pandas/core.py", False),
        ("/usr/lib/python3.11/json/decoder.py", False),
        ("/spark/python/lib/pyspark.zip/pyspark/worker.py", False),
        ("/spark/python/lib/py4j-0.10.9-src.zip/py4j/protocol.py", False),
        ("<frozen importlib._bootstrap>", False),
        (errors.__file__, False),
        (segments.__file__, False),
    ],
)
def test_which_lines_are_the_users_own(file: str, shown: bool) -> None:
    assert (
        list(users_frames(f'  File "{file}", line 3, in f\n    x = 1\n')) == [f"{Path(file).name}, line 3, in f: x = 1"] * shown
    )


ORDERS = {"orders": "east:9092"}
BOTH = {**ORDERS, "customers": "west:9092"}


@pytest.mark.parametrize(
    ("message", "topics", "says"),
    [
        (
            "Timed out waiting for a node assignment. Call: describeTopics",
            BOTH,
            "the brokers of topics customers, orders at east:9092 and west:9092 do not answer (Timed out waiting",
        ),
        (
            "Timeout of 60000ms expired before the position for partition orders-3 could be determined",
            BOTH,
            "the brokers of topic orders at east:9092 do not answer (Timeout of 60000ms",
        ),
        (
            "Expiring 3 record(s) for shop-out-0:120001 ms has passed since batch creation",
            ORDERS,
            "the brokers of topic shop-out do not answer (Expiring 3 record(s)",
        ),
        ("Topic shop-out not present in metadata after 120000 ms.", {}, "the brokers of topic shop-out do not answer (Topic"),
        ("Timeout of 30 s: the database is away", ORDERS, "Timeout of 30 s: the database is away"),
    ],
)
def test_brokers_that_do_not_answer_are_named_with_their_topic(message: str, topics: dict[str, str], says: str) -> None:
    """Those that are read, and a topic that is written, which Java's messages name alone."""
    first, _, what = told("joined", "/ck", 3, ["x", message], topics)
    assert first.startswith(f"query joined failed: {says}")
    assert ("check that these brokers run" in what) == ("brokers" in says)
