"""The mutations with which the tests themselves are tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.places import ROOT
from tools import mutations
from tools.mutations import MUTATIONS, Mutation, applied


@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_mutation_finds_its_text_once_and_names_tests_that_are_there(fault: str) -> None:
    mutation = MUTATIONS[fault]
    assert (ROOT / mutation.path).read_text().count(mutation.before) == 1
    assert all((ROOT / path).exists() for path in mutation.tests.split())


def test_a_mutation_is_applied_and_the_file_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    (tmp_path / "module.py").write_text("a = 1\n")
    with applied(Mutation("module.py", "1", "2", "")):
        assert (tmp_path / "module.py").read_text() == "a = 2\n"
    assert (tmp_path / "module.py").read_text() == "a = 1\n"
    with (
        pytest.raises(ValueError, match=r"module.py does not have this text once: '3'"),
        applied(Mutation("module.py", "3", "2", "")),
    ):
        pass
