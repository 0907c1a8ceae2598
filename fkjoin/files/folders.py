"""Columns that names of folders are, such as ``region=eu``: those that a table has, and their values in its types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.errors import MISPLACED
from fkjoin.spark.names import quoted

MISFIT = "__fkjoin_misfit"
"""Column that names the value of a folder that does not fit; null where all do."""


@dataclass(frozen=True)
class Folders:
    """Columns of folders that a table has, and the names of all that Spark finds; none where it is to look for none."""

    columns: StructType
    there: tuple[str, ...]
    base: str | None = None
    """Name of the folder with the files, where none of its folders was called as columns are when the table was made."""

    @property
    def texts(self) -> StructType:
        """All that Spark finds, as it is to read them: it stops at a value that does not fit another type."""
        return StructType([StructField(name, StringType()) for name in self.there])

    def misplaced(self, path: Column, lines: Iterable[str]) -> Column | None:
        """Stop at a file in a folder that is called as a column of the lines is: the folder came after that column.

        None where there can be none.
        """
        if not self.base:
            return None
        names = "|".join(re.escape(quote(name.lower())) for name in lines)
        folder = f"/{re.escape(quote(self.base.lower()))}/(?:.*/)?(?:{names})=[^/]*/"
        stop = F.raise_error(F.concat(F.lit(f"{MISPLACED}: "), path)).cast("string")
        return F.when(path.contains("="), F.when(F.lower(path).rlike(folder), stop))

    def placed(self, frame: DataFrame) -> tuple[DataFrame, Column | None]:
        """The frame with the columns in place of the texts, null where a folder went; and what says which value does not fit.

        That is None if all values fit.
        """
        if not self.there and not self.columns:
            return frame, None
        texts = {name.lower(): name for name in self.there}
        values, misfits = [], []
        for one in self.columns:
            name = texts.get(one.name.lower())
            if name is None:
                values.append(F.lit(None).cast(one.dataType).alias(one.name))
                continue
            text = F.col(quoted(name))
            if one.dataType == StringType():
                values.append(text.alias(one.name))
                continue
            value = text.try_cast(one.dataType)
            values.append(value.alias(one.name))
            told = F.concat(F.lit(f"the folder {name}="), text, F.lit(f" is no {one.dataType.simpleString()}"))
            misfits.append(F.when(text.isNotNull() & value.isNull(), told))
        others = [F.col(quoted(name)) for name in frame.columns if name not in self.there]
        if not misfits:
            return frame.select(*others, *values), None
        return frame.select(*others, *values, F.coalesce(*misfits).alias(MISFIT)), F.col(MISFIT)


def as_glob(path: str) -> str:
    """Return a glob of the path alone: Spark looks for no columns in folders of a glob.

    Else its readers take columns of folders that come later for those of the lines, by their places.
    """
    above, slash, name = path.rstrip("/").rpartition("/")
    return f"{above}{slash}{re.sub('[A-Za-z0-9]', lambda letter: f'[{letter[0]}]', name, count=1)}" if "^" not in name else path


def without_base(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the folder in which Spark looks for such columns."""
    return {name: value for name, value in options.items() if name.lower() != "basepath"}


def lowered(names: Iterable[str]) -> set[str]:
    """The names as Spark compares them."""
    return {name.lower() for name in names}
