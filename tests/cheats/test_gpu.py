"""The same table on a GPU: every cheat is refused for the right reason, every honest twin is correct."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from htam_agent.backends.cuda import CudaBackend
from tests.cheats.table import Case, Table, cases
from tests.cheats.tasks import TASKS

pytestmark = pytest.mark.gpu

ORDERED = sorted(cases("cuda"), key=lambda case: list(TASKS).index(case.task))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    answer = CudaBackend().available()
    if not answer.ok:
        pytest.skip(f"no CUDA device: {answer.reason}")
    with Table("cuda", tmp_path_factory.mktemp("cheats")) as opened:
        yield opened


@pytest.mark.parametrize("case", [pytest.param(case, id=case.key) for case in ORDERED])
def test_a_cheat_is_refused_and_a_twin_is_correct(judged: Table, case: Case) -> None:
    row = judged.row(case)
    assert row.good, row
