"""Options of Spark's file source, of any format, checked before a query starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from fkjoin.errors import TopologyError
from fkjoin.spark.option_values import require_one_of, require_whole

_OF_ANY_FILE = """
    maxFilesPerTrigger maxBytesPerTrigger latestFirst maxFileAge maxCachedFiles fileNameOnly
    cleanSource sourceArchiveDir recursiveFileLookup pathGlobFilter basePath
"""
_OF_A_FORMAT = """
    allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers
    allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames
    charset charToEscapeQuoteEscaping columnNameOfCorruptRecord comment compression dateFormat
    delimiter dropFieldIfAllNull emptyValue encoding enforceSchema escape header
    ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inferSchema lineSep locale maxCharsPerColumn
    maxColumns mergeSchema mode multiLine nanValue negativeInf nullValue positiveInf preferDate
    prefersDecimal primitivesAsString quote samplingRatio sep timestampFormat timestampNTZFormat
    timeZone unescapedQuoteHandling discardCachedInputRatio ignoreCorruptFiles ignoreMissingFiles
    datetimeRebaseMode int96RebaseMode
"""
OF_ANY_FILE = frozenset(_OF_ANY_FILE.split())
"""Names of options of the source whatever the format."""
_NAMES = (_OF_ANY_FILE + _OF_A_FORMAT).split()
_KNOWN = {name.lower(): name for name in _NAMES}
_ALIKE = 0.85
"""The similarity from which an unknown name is a known one, misspelt: file systems have options."""

_LEAST = {"maxFilesPerTrigger": 1, "maxBytesPerTrigger": 1, "maxCachedFiles": 0}
_VALUES = {
    **dict.fromkeys(("latestFirst", "fileNameOnly", "recursiveFileLookup"), ("true", "false")),
    "cleanSource": ("off", "delete", "archive"),
}


def spelled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, the known ones under Spark's own names, in whatever letters they were given."""
    return {_KNOWN.get(name.lower(), name): value for name, value in options.items()}


def require_options(options: Mapping[str, Any]) -> None:
    """Raise ``TopologyError`` for a value that the source does not take, or a misspelt name."""
    for name in options:
        if name.lower() in _KNOWN:
            continue
        if close := difflib.get_close_matches(name, _NAMES, 1, _ALIKE):
            raise TopologyError(
                f"options: Spark's file source has no option {name!r}; did you mean {close[0]!r}?"
            )
    require_whole(options, _LEAST)
    require_one_of(options, _VALUES)
