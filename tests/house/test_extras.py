"""An installation without extras, with each of them, and with one that is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib

from tests.support.places import ROOT
from tests.support.sessions import short_lived

pytestmark = pytest.mark.nightly

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = dict(PROJECT["optional-dependencies"])
EVERYTHING, _ = EXTRAS.pop("all"), EXTRAS.pop("dev")


OF_AN_EXTRA = {
    "confluent-kafka[avro,json,protobuf,schemaregistry]": {"confluent_kafka", "h11"},
    "pyspark[connect]": {"grpc", "grpc_status", "zstandard"},
    "pyiceberg[pyarrow,pyiceberg-core,sql-sqlite]": {"pydantic", "pyiceberg", "pyiceberg_core", "sqlalchemy", "zstandard"},
}
"""Imports of packages that an extra brings: of a package that is installed anyway, or those that other extras bring, too."""


def modules(required: list[str]) -> set[str]:
    """The names by which the packages are imported."""
    names = [re.split(r"[>;]", one)[0].strip() for one in required]
    return set().union(*(OF_AN_EXTRA.get(name, {name.partition("[")[0].replace("-", "_")}) for name in names))


OPTIONAL = {name for required in EXTRAS.values() for name in modules(required)}

REFUSE = """
import os, sys


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["REFUSED"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refused())
"""
"""Python imports it at each start, also of Spark's workers."""

PAGE = """
from fkjoin.metrics.server import ClientAccess, PageServer
PageServer({}, 0, ClientAccess(), "port").close()
"""

NO_SERVER = """
import fkjoin
try:
    fkjoin.session(remote="sc://127.0.0.1:1")
except fkjoin.SessionError as error:
    assert str(error).startswith("remote: no server answers at"), error
"""

USES = {
    "cli": [
        ["-m", "fkjoin", "schema"],
        ["-c", "from fkjoin.metrics import Metrics; Metrics().prometheus()"],
        ["-c", PAGE],
        ["-c", "from fkjoin.jobs.job_tables import job_tables"],
    ],
    "connect": [["-c", NO_SERVER]],
    "delta": [["-c", "from fkjoin.sinks import Delta; Delta('a')"]],
    "iceberg": [["-c", "from fkjoin.sinks import Iceberg; Iceberg('a.b')"]],
    "objects": [["-c", "from fkjoin.sinks import Parquet; Parquet('s3a://a/b')"]],
    "kafka": [["-c", "from fkjoin.kafka import Json; from fkjoin.sinks import Kafka; Kafka('a', 'b:1'), Json('a int')"]],
    "postgres": [["-c", "from fkjoin.sinks import Postgres; Postgres('a', 'postgresql://b/c')"]],
    "registry": [
        ["-c", f"from fkjoin.kafka import Registry; Registry('{kind}', 'a int', 'http://b')"] for kind in ("avro", "protobuf")
    ],
}
"""Programs that need an extra."""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("refusing")
    (folder / "sitecustomize.py").write_text(REFUSE)
    return f"{folder}{os.pathsep}{ROOT}"


def run(refusing: str, refused: set[str], *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program in a Python for which some packages are not installed."""
    environment = short_lived(PYTHONPATH=refusing, REFUSED=",".join(refused))
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_has_what_is_needed(refusing: str, extra: str) -> None:
    for use in USES[extra]:
        done = run(refusing, OPTIONAL - modules(EXTRAS[extra]), *use)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("extra", "use"), [(extra, use) for extra, uses in USES.items() if EXTRAS[extra] for use in uses])
def test_a_missing_extra_is_an_error_that_says_what_to_install(refusing: str, extra: str, use: list[str]) -> None:
    done = run(refusing, modules(EXTRAS[extra]), *use)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert re.search(rf'\w needs \w+: pip install "fkjoin\[{extra}\]"$', said[-1]), done.stderr
    if "-m" in use:
        assert said == ['fkjoin: the command line needs typer: pip install "fkjoin[cli]"']


def test_all_is_all_extras() -> None:
    assert [f"fkjoin[{','.join(sorted(EXTRAS))}]"] == EVERYTHING
    assert set(USES) == set(EXTRAS)
    assert OPTIONAL & modules(PROJECT["dependencies"]) == set()


BASE = """
from pathlib import Path

from fkjoin import *
from fkjoin import aggregates as agg, kafka, metrics, sinks, testing


def tried(left, right) -> str:
    try:
        import typer
    except ImportError as error:
        return error.name
    return "imported"


for name in ("orders", "customers"):
    Path(name).mkdir()
    Path(name, "1.json").write_text('{"id": 1, "customer": "a", "n": 1}')
spark = session("base", "local[1]", sql_shuffle_partitions=1, ui_enabled=False, driver_host="127.0.0.1")
metrics.watch(spark)
orders = Table.from_files(spark, "orders", key="id", version="n")
customers = Table.from_files(spark, "customers", key="customer", version="n")
joined = fk_join(orders, customers, "customer", joiner=tried)
counted = joined.group_by("value", name="counted").agg(rows=agg.count()).materialize("counted")
counted.to_parquet("out", checkpoint="ck", trigger="available-now").awaitTermination()
print(read_state(spark, "ck", "counted").collect())
"""


@pytest.mark.spark
def test_joins_need_no_extra_in_the_driver_nor_in_workers(refusing: str, tmp_path: Path) -> None:
    pysparks = OF_AN_EXTRA["pyspark[connect]"]  # it looks for them itself, in a way that does not bear a refusal
    done = run(refusing, OPTIONAL - pysparks, "-c", BASE, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "value='typer', rows=1" in done.stdout
