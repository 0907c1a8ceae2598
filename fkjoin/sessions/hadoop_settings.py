"""Hadoop's settings without a note of where each comes from.

Spark hands Hadoop's settings, some 1,100, to the tasks of each stateful operator, in each batch; Hadoop writes the notes (files
that a setting is from) each as a GZIP stream of its own (docs/adr/0027-settings-travel-without-their-sources.md).
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError

from fkjoin.errors import first_line

_CLASS = "org.apache.hadoop.conf.Configuration"

_SOURCES = "updatingResource"
"""The field in which a ``Configuration`` has these notes, by the settings' names; settings that are not there have none."""


def forget_sources(context: Any) -> None:
    """Have the settings of a local ``SparkContext`` come from nowhere; where Hadoop keeps that otherwise, it stays as it is.

    Settings that it reads from its files later have their notes again.
    """
    try:
        kept = context._jvm.java.lang.Class.forName(_CLASS).getDeclaredField(_SOURCES)
        kept.setAccessible(True)
        kept.get(context._jsc.hadoopConfiguration()).keySet().clear()  # Py4J's own clear of a map takes names out one by one
    except Py4JError as error:
        logging.getLogger(__name__).info("Hadoop's settings keep their sources: %s", first_line(error))
