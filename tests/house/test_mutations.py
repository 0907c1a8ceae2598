"""The mutations with which the tests themselves are tested."""

from __future__ import annotations

import pytest

from tests.support.places import ROOT
from tools.mutations import MUTATIONS


@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_mutation_finds_its_text_once_and_names_tests_that_are_there(fault: str) -> None:
    mutation = MUTATIONS[fault]
    assert (ROOT / mutation.path).read_text().count(mutation.before) == 1
    assert all((ROOT / path).exists() for path in mutation.tests.split())
