"""The attacks on files, processes and the network work where nothing confines them: so it is the confinement that
refuses them, and not a mistake in the attack. Each is harmless where it succeeds (see harness.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from htam_agent.evaluation.confinement import LAYERS
from tests.cheats.table import Case, Table, cases

KEPT = ("process-group", "empty-environment", "own-folder", "limits")
OFF = ",".join(layer for layer in LAYERS if layer not in KEPT)
NOT_SHOWN = {
    "H4 traces its parent": "a machine may refuse to trace by itself",
    "H5 opens another candidate's file for writing": "nobody else may be there",
    "H6 reads other candidates": "nobody else may be there",
    "H6 reaches the network's names": "a machine may have no name server",
    "H6 looks for keys in its environment": "the environment is empty in every process of the harness",
}
ATTACKS = [case for case in cases("cpp") if case.id in ("H4", "H5", "H6") and not case.twin]

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def unconfined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with pytest.MonkeyPatch.context() as patch, Table("cpp", tmp_path_factory.mktemp("unconfined")) as table:
        patch.setenv("HTAM_CONFINEMENT_OFF", OFF)
        table.bench("affine")
        yield table


@pytest.mark.parametrize("case", [pytest.param(case, id=case.key) for case in ATTACKS if case.key not in NOT_SHOWN])
def test_an_attack_works_where_nothing_confines_it(
    unconfined: Table, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTAM_CONFINEMENT_OFF", OFF)
    row = unconfined.row(case)
    assert row.verdict == "correct", row


def test_what_is_not_shown_is_in_the_table() -> None:
    assert set(NOT_SHOWN) <= {case.key for case in ATTACKS}
