"""Columns that names of folders are, such as ``region=eu``: their values in the table's types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
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
    """Columns of folders that a table has, and the names of all that Spark finds."""

    columns: StructType
    names: tuple[str, ...]
    """The names of all; none where Spark is to look for none."""
    base: str | None = None
    """Name of the folder with the files, if no folder in it was called as columns are at first."""

    @property
    def texts(self) -> StructType:
        """All columns as Spark is to read them: it stops at a value that fits no other type."""
        return StructType([StructField(name, StringType()) for name in self.names])

    def misplaced(self, path: Column, lines: Iterable[str]) -> Column | None:
        """Stop at a file in a folder that is called as a column of the lines is.

        The folder came after that column.  None where there can be none.
        """
        if not self.base:
            return None
        names = "|".join(re.escape(quote(name.lower())) for name in lines)
        folder = f"/{re.escape(quote(self.base.lower()))}/(?:.*/)?(?:{names})=[^/]*/"
        stop = F.raise_error(F.concat(F.lit(f"{MISPLACED}: "), path)).cast("string")
        return F.when(path.contains("="), F.when(F.lower(path).rlike(folder), stop))

    def placed(self, frame: DataFrame) -> tuple[DataFrame, Column | None]:
        """The frame with the columns in place of the texts, and the column that names a misfit.

        A value is null where a folder went.  There is no column of misfits if all values fit.
        """
        if not self.names and not self.columns:
            return frame, None
        texts = {name.lower(): name for name in self.names}
        values, misfits = [], []
        for field in self.columns:
            kind, name = field.dataType, texts.get(field.name.lower())
            if name is None:
                values.append(F.lit(None).cast(kind).alias(field.name))
                continue
            text = F.col(quoted(name))
            if kind == StringType():
                values.append(text.alias(field.name))
                continue
            value = text.try_cast(kind)
            values.append(value.alias(field.name))
            folder, contrast = f"the folder {name}=", f" is not of type {kind.simpleString()}"
            problem = F.concat(F.lit(folder), text, F.lit(contrast))
            misfits.append(F.when(text.isNotNull() & value.isNull(), problem))
        others = [F.col(quoted(name)) for name in frame.columns if name not in self.names]
        if not misfits:
            return frame.select(*others, *values), None
        return frame.select(*others, *values, F.coalesce(*misfits).alias(MISFIT)), F.col(MISFIT)


def as_glob(path: str) -> str:
    """Return a glob of the path alone: Spark looks for no columns in folders of a glob.

    Else its readers take columns of folders that come later for the lines' columns, by their
    places.
    """
    above, slash, name = path.rstrip("/").rpartition("/")
    if "^" in name:
        return path
    return above + slash + re.sub("[A-Za-z0-9]", r"[\g<0>]", name, count=1)


def lowered(names: Iterable[str]) -> set[str]:
    """The names as Spark compares them."""
    return {name.lower() for name in names}
