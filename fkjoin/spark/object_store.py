"""Object stores that pyarrow reaches.

There a file is put, copied or deleted at once, and no folder is renamed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from fkjoin.errors import TopologyError

S3 = ("s3", "s3a", "s3n")
_GCS, _AZURE = ("gs", "gcs"), ("abfs", "abfss")
SCHEMES = (*S3, *_GCS, *_AZURE)
_SPARKS_NAMES = dict.fromkeys(S3, "s3") | {"gcs": "gs"}
"""Schemes by which Spark reads a store and pyarrow does not."""
_ADDRESSES, _REGIONS = (
    ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    ("AWS_REGION", "AWS_DEFAULT_REGION"),
)
"""Variables of the environment that count where no option does.

pyarrow reads the first ones only without options.
"""
_SECONDS = "_timeout"
"""End of an option that is a number of seconds."""
_TRUTHS = {"true": True, "false": False}


def is_store(address: str) -> bool:
    """Tell whether an address belongs to an object store."""
    return urlsplit(address).scheme in SCHEMES


def by_one_name(address: str) -> str:
    """The address with one name for a store that has several."""
    scheme, colon, rest = address.partition(":")
    return f"{_SPARKS_NAMES.get(scheme, scheme)}{colon}{rest}"


def require_no_login(address: str) -> None:
    """``TopologyError`` if an address has a password in it, which errors and logs would show."""
    if urlsplit(address).password is not None:
        raise TopologyError(
            "path: the address has a secret in it: leave it out, and give it in options or in the "
            "environment"
        )


def require_no_empty_name(address: str) -> None:
    """``TopologyError`` if an address has ``//`` in its path, which pyarrow does not take."""
    scheme, _, path = address.partition("://")
    if "//" in path.rstrip("/"):
        clean = re.sub("/+", "/", path)
        raise TopologyError(
            f"path: {address} has a folder without a name in it: write {scheme}://{clean}"
        )


def opened(address: str, options: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """Open the store of an address; it, and the path in it.

    ``options``: arguments of pyarrow's class for it.  ``OSError`` of what the store says,
    ``TopologyError`` of options.
    """
    scheme, _, rest = address.partition("://")
    bucket, slash, path = rest.partition("/")
    try:
        if options:
            # The bucket, or Azure's container before its account.
            files, base = _by_options(scheme, bucket, options), bucket.partition("@")[0]
        else:
            files, base = by_address(scheme, bucket)
    except (TypeError, ValueError, pa.ArrowNotImplementedError) as error:
        why = str(error).removeprefix("__init__() ").rstrip(".")
        raise TopologyError(
            f"options: {scheme}://{bucket} cannot be opened: {why}. They are arguments of "
            f"pyarrow.fs.{_class_of(scheme)}, as texts"
        ) from error
    return files, f"{base}{slash}{path}".rstrip("/")


def by_address(scheme: str, bucket: str) -> tuple[fs.FileSystem, str]:
    """Open the store of an address without options; it, and the bucket's path in it."""
    files, base = fs.FileSystem.from_uri(by_one_name(f"{scheme}://{bucket}"))
    return files, base.rstrip("/")


def _by_options(scheme: str, bucket: str, options: Mapping[str, str]) -> fs.FileSystem:
    arguments: dict[str, Any] = {name: _value(name, text) for name, text in options.items()}
    if scheme in S3:
        if (address := next(filter(None, map(os.environ.get, _ADDRESSES)), None)) is not None:
            arguments.setdefault("endpoint_override", address)
        if not {"region", "endpoint_override"} & arguments.keys() and not any(
            map(os.environ.get, _REGIONS)
        ):
            arguments["region"] = fs.resolve_s3_region(bucket)
    if scheme in _AZURE:
        arguments.setdefault("account_name", bucket.partition("@")[2].partition(".")[0])
    make: Callable[..., fs.FileSystem] = getattr(fs, _class_of(scheme))
    return make(**arguments)


def _class_of(scheme: str) -> str:
    if scheme in S3:
        return "S3FileSystem"
    return "GcsFileSystem" if scheme in _GCS else "AzureFileSystem"


def _value(name: str, text: str) -> Any:
    if name.endswith(_SECONDS):
        return float(text)
    return _TRUTHS.get(text.lower(), text)
