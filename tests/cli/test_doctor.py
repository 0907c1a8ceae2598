"""The lines of ``fkjoin doctor`` about PySpark and pandas."""

from __future__ import annotations

import pandas
import pyspark
import pytest

from fkjoin.cli import doctor


@pytest.mark.parametrize(
    ("release", "fine", "faults"),
    [
        ("3.5.6", False, []),
        ("4.0.0", False, ["SPARK-53870", "SPARK-58932"]),
        ("4.0.1", False, ["SPARK-53870", "SPARK-58932"]),
        ("4.0.2", True, ["SPARK-58932"]),
        ("4.2.1.dev0", True, ["SPARK-58932"]),
        ("4.3.0", True, []),
        ("5.0.0", False, []),
    ],
)
def test_known_faults_of_a_release_are_named(
    monkeypatch: pytest.MonkeyPatch, release: str, fine: bool, faults: list[str]
) -> None:
    monkeypatch.setattr(pyspark, "__version__", release)
    found = doctor._pyspark()
    assert (found.fine, found.found.split(";")[0]) == (fine, release)
    assert [fault for fault in ("SPARK-53870", "SPARK-58932") if fault in found.found] == faults
    assert found.advice == 'pip install "pyspark>=4.0.2,<5"'


def test_pyspark_has_the_word_on_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> None:
        import warnings

        warnings.warn("some features may not work", FutureWarning, stacklevel=2)

    assert doctor._pandas().found.split(";")[0] == pandas.__version__
    monkeypatch.setattr(pandas, "__version__", "2.2.3")
    assert doctor._pandas() == ("pandas", True, "2.2.3", "")
    monkeypatch.setattr(pandas, "__version__", "1.5.3")
    found = doctor._pandas()
    assert (found.fine, found.advice) == (False, 'pip install "pandas>=2.2"')
    assert "1.5.3" in found.found
    monkeypatch.setattr(doctor, "require_minimum_pandas_version", warn)
    assert doctor._pandas() == ("pandas", True, "1.5.3; PySpark says: some features may not work", "")
