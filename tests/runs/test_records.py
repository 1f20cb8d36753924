"""What a run stores of its settings: everything that a resume needs, absolute, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.runs.records import RunSettings
from htam_agent.settings import Settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_paths_are_absolute_so_that_a_resume_may_start_elsewhere(tmp_path: Path) -> None:
    stored = RunSettings.of(Settings.load({"memory": "m", "strategies": ["s"], "prompts": "p"}))
    assert (stored.memory, stored.strategies, stored.prompts) == (tmp_path / "m", (tmp_path / "s",), tmp_path / "p")
    assert set(stored.values()) == (set(RunSettings.model_fields) | set(stored.models)) - {"withheld", "models"}


@pytest.mark.parametrize("url", ["https://me:secret-word@host/v1", "https://host/v1?key=secret-word"])
def test_no_secret_is_stored(url: str) -> None:
    stored = RunSettings.of(Settings.load({"api_key": "secret-word", "base_url": url, "model": "m"}))
    assert "secret-word" not in stored.model_dump_json()
    assert stored.withheld == ("base_url",)
    assert "base_url" not in stored.values(), "a resume takes it from its own settings"
    assert stored.values()["model"] == "m"
