"""The benchmark of concurrent runs, small: every run ends, and none shows anything of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.concurrency import measure, model


@pytest.mark.slow
def test_runs_side_by_side_do_not_mix(tmp_path: Path) -> None:
    with model() as url:
        found = measure(6, 2, tmp_path, url)
    assert found["finished"] == 6
    assert found["cross_talk"] == []
    assert found["questions"] == 12
