"""Changes of a local session besides its settings.

Its workers start sooner, and Hadoop leaves out two things that take time in each batch.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError

from fkjoin.errors import first_line
from fkjoin.spark.spark_api import hadoop_settings, jvm

STARTER = Path(__file__).with_name("local-python")
"""A program that takes the place of Python on the command line of a worker."""

_SOURCE = Path(__file__).with_name("LocalFiles.java")
_CLASS = "fkjoin.LocalFiles"
_IMPLEMENTATION = "fs.file.impl"
"""Hadoop's setting of what reads and writes ``file:``; a user's own choice stays."""

_NOTES = "updatingResource"
"""The field in which Hadoop's settings have notes of the files that they are from."""


def complete(context: Any) -> None:
    """Complete a local ``SparkContext``; where Hadoop is not as we know it, it stays as it is."""
    use_this_python(context)
    for change in (use_local_files, forget_sources):
        try:
            change(context)
        except Py4JError as error:
            logging.getLogger(__name__).info("no %s: %s", change.__name__, first_line(error))


def use_this_python(context: Any) -> None:
    """Have workers run on this interpreter, virtual environment included.

    They import PySpark from beside it, where it is compiled already, and not from Spark's archives
    (docs/adr/0015-workers-import-from-where-pyspark-is-installed.md).
    """
    context.pythonExec = sys.executable
    if sys.platform != "win32" and _is_installed() and os.access(STARTER, os.X_OK):
        context.pythonExec = str(STARTER)
        context.environment["FKJOIN_PYTHON"] = sys.executable


def _is_installed() -> bool:
    """Tell whether workers find this PySpark, which is the JVM's, without archives of it."""
    package = Path(pyspark.__file__).parent
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return package.parent in folders and Path(os.environ.get("SPARK_HOME", package)) == package


def use_local_files(context: Any) -> None:
    """Have Hadoop set permissions of local files within the JVM.

    Unless its native library is there, it starts a process ``chmod`` twice for every file, 64 of
    them in a small batch of a join.  Janino, with which Spark compiles its own code, compiles our
    class (docs/adr/0026-permissions-are-set-without-processes.md).
    """
    classes, settings = jvm(), hadoop_settings(context)
    system = classes.org.apache.hadoop.fs.FileSystem
    disk = classes.java.net.URI("file:///")
    current = system.get(disk, settings)
    is_native = classes.org.apache.hadoop.util.NativeCodeLoader.isNativeCodeLoaded()
    is_chosen = settings.get(_IMPLEMENTATION) is not None
    is_ours = current.getClass().getName() == _CLASS
    if is_native or is_chosen or is_ours or sys.platform == "win32":
        return
    compiler = classes.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(classes.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text())
    ours = classes.org.apache.hadoop.conf.Configuration(settings)
    ours.setClassLoader(compiler.getClassLoader())
    ours.set(_IMPLEMENTATION, _CLASS)
    # Hadoop keeps one for all callers, whatever their settings: the first that is made after this.
    current.close()
    system.get(disk, ours)


def forget_sources(context: Any) -> None:
    """Have Hadoop's settings come from nowhere.

    Spark hands these, some 1,100, to the tasks of each stateful operator, in each batch; Hadoop
    writes each note as a GZIP stream of its own
    (docs/adr/0027-settings-travel-without-their-sources.md).
    """
    settings = hadoop_settings(context)
    notes = settings.getClass().getDeclaredField(_NOTES)
    notes.setAccessible(True)
    # Py4J's own clear of a map takes names out one by one.
    notes.get(settings).keySet().clear()
