"""A recorded run is run again without a network, in another folder and memory, to the same path."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.api import optimize
from htam_agent.errors import RunError
from tests.support.endpoint import scripted
from tests.support.instant import TASK, answer, settings_of


def test_a_recorded_run_is_replayed_and_another_one_is_refused(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    with scripted(answer("1.2"), answer("broken"), answer("1.5"), answer("1.1")) as server:
        given = settings_of(tmp_path, server.url, record=recording, candidates=1)
        given.pop("seed")
        first = optimize(str(TASK), **given)
    assert sorted(path.name for path in (recording / "exchanges").iterdir()) == [
        "0001-0-0-code-1.json", "0002-0-0-code-1.json", "0002-0-1-repair-1.json", "0003-0-0-code-1.json",
    ]  # fmt: skip
    again = {**given, "record": None, "replay": recording, "out": tmp_path / "again", "memory": tmp_path / "memory-2"}
    second = optimize(str(TASK), **{**again, "api_key": None, "base_url": None})
    paths = [
        [(step.direction, step.strategy, step.verdict, step.speedup, step.models) for step in result.steps]
        for result in (first, second)
    ]
    assert paths[0] == paths[1]
    assert second.cost.models == first.cost.models
    with pytest.raises(RunError, match="0001-0-0-code-1 differs") as caught:
        optimize(str(TASK), **{**again, "precision": "ieee", "out": tmp_path / "third"})
    assert caught.value.code == "replay-differs"
    assert "sk-never-shown" not in "".join(path.read_text() for path in recording.rglob("*.json"))
