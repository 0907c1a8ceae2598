"""Hadoop's file system of the local disk, without a process ``chmod`` for each file that it makes.

Unless its native library is there, Hadoop starts such a process twice for every file, 64 of them in a small batch of a join.
``LocalFiles.java`` sets permissions within the JVM; Janino, with which Spark compiles its own code, compiles it
(docs/adr/0026-permissions-are-set-without-processes.md).
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from fkjoin.errors import first_line

_SOURCE = Path(__file__).with_name("LocalFiles.java")

_CLASS = "fkjoin.LocalFiles"

_IMPLEMENTATION = "fs.file.impl"
"""Hadoop's setting of what reads and writes ``file:``; a user that has set it gets what they want."""


def use_local_files(context: Any) -> None:
    """Have the JVM of a local ``SparkContext`` use it from here on; where that cannot be, Hadoop's own remains."""
    if sys.platform == "win32":  # whose permissions are others, and Hadoop has a program of its own for them
        return
    try:
        _replace(context)
    except Py4JError as error:
        logging.getLogger(__name__).info("Hadoop's own file system of the local disk remains: %s", first_line(error))


def _replace(context: Any) -> None:
    jvm, given = context._jvm, context._jsc.hadoopConfiguration()
    files = jvm.org.apache.hadoop.fs.FileSystem
    place = jvm.java.net.URI("file:///")
    native = jvm.org.apache.hadoop.util.NativeCodeLoader.isNativeCodeLoaded()
    current = files.get(place, given)
    if native or given.get(_IMPLEMENTATION) is not None or current.getClass().getName() == _CLASS:
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text())
    ours = jvm.org.apache.hadoop.conf.Configuration(given)
    ours.setClassLoader(compiler.getClassLoader())
    ours.set(_IMPLEMENTATION, _CLASS)
    # Hadoop keeps one for all callers, whatever their settings: the first one that is made after this.
    current.close()
    files.get(place, ours)
