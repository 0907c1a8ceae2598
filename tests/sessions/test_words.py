"""Lines of a session's JVM on standard error."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import warnings

import pandas
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from fkjoin.errors import SessionError
from fkjoin.sessions import words
from fkjoin.sessions.settings import session

LINES = b"""\
WARNING: Using incubator modules: jdk.incubator.vector
26/11/26 18:14:06 WARN MicroBatchExecution: Disabling AQE since AQE is not supported in stateful workloads.
26/11/26 18:14:06 WARN TransformWithStateInPySparkStateServer: Value state meta doesn't contain a value.
26/11/26 18:14:06 WARN TransformWithStateInPandasStateServer: Value state meta doesn't contain a value.
26/11/26 18:14:06 WARN TransformWithStateInPandasStateServer: No more data to read from the socket
/opt/pyspark/testing/utils.py:127: FutureWarning: PySpark does not yet fully support pandas >= 3.0.0. It is recommended
  require_minimum_pandas_version()
26/11/26 18:14:06 WARN FileStreamSink: Assume no metadata directory. Error while looking for metadata directory in the path: [a]
java.io.FileNotFoundException: File [a] does not exist
\tat org.apache.hadoop.fs.RawLocalFileSystem.getFileStatus(RawLocalFileSystem.java:917)
Caused by: java.lang.IllegalStateException: no
\t... 12 more
Starting Streaming TransformWithStateInPandas Python worker.

26/11/26 18:14:06 WARN MicroBatchExecution: Batch 3 takes long
java.lang.IllegalStateException: a user's
\tat a.User.code(User.java:1)

 WARN DAGScheduler: Failed to cancel job group 1. Cannot find active jobs for it.
no end"""


ALL = LINES.decode()
KEPT = ALL.split("\n\n", 1)[1]


def written(*texts: bytes, capfd: pytest.CaptureFixture[str], everything: bool = False) -> str:
    output = words.Output()
    output.everything = everything
    for text in texts:
        os.write(output.writing, text)
    output.catch_up()
    os.close(output.writing)
    output.join()
    return capfd.readouterr().err


def test_lines_of_no_use_are_left_out_and_nothing_else_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert written(LINES, capfd=capfd) == KEPT
    assert written(LINES[:70], LINES[70:], capfd=capfd) == KEPT, "lines that come in parts"
    assert written(LINES, capfd=capfd, everything=True) == ALL, "for who chooses a level"


def test_a_retry_of_kafkas_client_is_said_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    warn = "26/11/26 18:14:0{} WARN NetworkClient: "
    retry = f"{warn}[Consumer clientId=c-{{}}] Connection to node {{}} could not be established.\n"
    topic = f"{warn}[Producer clientId=p] Error while fetching metadata with correlation id {{}}\n"
    other = "26/11/26 18:14:09 WARN Sender: [Producer clientId=p] Got error produce response\n"
    lines = [retry.format(0, 1, 1), retry.format(1, 2, 1), retry.format(1, 2, 2), topic.format(2, 7), topic.format(3, 8)]
    said = [lines[0], lines[2], lines[3], other, other]
    assert written(*(line.encode() for line in (*lines, other, other)), capfd=capfd) == "".join(said)
    monkeypatch.setattr(words, "_SILENT_S", 0.0)
    assert written(*(line.encode() for line in lines), capfd=capfd) == "".join(lines), "as after a minute without it"


@pytest.mark.newest
def test_a_session_does_not_repeat_what_pyspark_says_of_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pandas, "__version__", "3.0.0")
    with warnings.catch_warnings(record=True) as said:
        warnings.resetwarnings()
        require_minimum_pandas_version()
        words.drop_warnings()
        require_minimum_pandas_version()
        warnings.filterwarnings("always", category=FutureWarning)
        require_minimum_pandas_version()  # a program that asks for the warning gets it
    told = [one for one in said if one.category is FutureWarning]  # others are of what was left open elsewhere
    assert len(told) == 2


def test_no_line_is_lost_where_standard_error_does_not_wait() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    program = "import os; from fkjoin.sessions.words import output; os.write(output().writing, {})"
    lines = "b'%500d\\n' * 400 % (*range(400),)"
    run = subprocess.Popen([sys.executable, "-c", program.format(lines)], stderr=writing)
    os.close(writing)
    select.select([reading], [], [])
    time.sleep(0.5)  # the pipe fills
    arrived = b""
    while piece := os.read(reading, 1 << 16):
        arrived += piece
    os.close(reading)
    assert run.wait() == 0
    assert arrived == b"%500d\n" * 400 % (*range(400),)


@pytest.mark.parametrize("closed", [True, False])
def test_standard_error_that_nothing_reads_or_that_is_closed_holds_no_end_up(closed: bool) -> None:
    reading, writing = os.pipe()
    program = f"""if True:
        import os, threading
        from fkjoin.sessions.words import output
        writes = threading.Thread(target=os.write, args=(output().writing, b"x\\n" * 199_999), daemon=True)
        writes.start()
        if {closed}:
            writes.join()
        """
    if closed:
        os.close(reading)
    try:
        run = subprocess.run([sys.executable, "-c", program], stderr=writing, check=False, timeout=60)
    finally:
        os.close(writing)
        if not closed:
            os.close(reading)
    assert run.returncode == 0


def test_a_fork_ends_without_the_thread(capfd: pytest.CaptureFixture[str]) -> None:
    program = """if True:
        import os, sys
        from fkjoin.sessions.words import output
        output()
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_all_is_said_for_who_chooses_a_level_and_one_that_there_is_not_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words.output(), "everything", False)
    try:
        with pytest.raises(SessionError, match=r"Spark refuses one: .*Supplied level warning .*WARN"):
            session(log_level="warning")
        session(log_level="INFO")
        assert words.output().everything
    finally:
        spark.sparkContext.setLogLevel("ERROR")


FIRST = "first\n"
REPORT = b":: resolution report ::\n\t0 artifacts copied, 13 already retrieved (0kB/12ms)\nfirst\n"


def test_what_is_held_comes_in_its_order(capfd: pytest.CaptureFixture[str]) -> None:
    for before, everything, shown in ((REPORT, True, FIRST), (REPORT, False, FIRST), (LINES, True, ALL), (LINES, False, KEPT)):
        output = words.Output()
        output.everything, output.held = everything, True
        os.write(output.writing, before)
        assert output.said() == before.decode()
        assert capfd.readouterr().err == ""
        output.release()
        os.write(output.writing, b"second\n")
        output.catch_up()
        assert capfd.readouterr().err == shown + "second\n"
