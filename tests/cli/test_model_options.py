"""Flags of models, budgets and recordings: what is wrong is one sentence before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from htam_agent.cli import main
from htam_agent.coding.chat import Answer
from htam_agent.coding.recording import Recorder
from tests.support.endpoint import failure, scripted
from tests.support.instant import TASK


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HTAM_MODEL", "scripted")
    monkeypatch.setenv("HTAM_API_KEY", "sk-never-shown")
    monkeypatch.setenv("HTAM_BASE_URL", "http://127.0.0.1:9/v1")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, str]:
    """The error object of `htam optimize` with these flags, which must have done no work."""
    with pytest.raises(SystemExit) as caught:
        main(["optimize", str(TASK), "--backend", "cpp", "--coder", "model", "--json", *flags])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert "sk-never-shown" not in shown.out + shown.err
    assert not list(Path.cwd().rglob("run.json"))
    return dict(json.loads(shown.out.strip().splitlines()[-1])["error"])


@pytest.mark.parametrize("flag", ["--max-cost", "--max-tokens", "--max-seconds"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_budget_of_nothing(capsys: pytest.CaptureFixture[str], flag: str, value: str) -> None:
    error = refused(capsys, flag, value)
    assert flag in error["message"]
    assert "greater than 0" in error["message"]


def test_a_budget_in_dollars_without_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "--max-cost", "1")
    assert error["code"] == "price-unknown"
    assert "'scripted'" in error["message"]
    assert "HTAM_PRICES" in error["remedy"]


def test_a_price_table_that_is_none(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "prices.toml").write_text("[[price]]\nmodel = 1\n")
    assert "prices.toml" in refused(capsys, "--prices", "prices.toml")["message"]


def begun(folder: Path) -> None:
    """A recording of one exchange."""
    answer = Answer(text="yes", prompt_tokens=1, completion_tokens=1)
    Recorder(folder / "recording", 1).keep(None, "code", "scripted", [("human", "Go on?")], None, answer)


def test_a_recording_of_another_version(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    begun(folder)
    head = folder / "recording" / "recording.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "version": "0.0.1"}))
    error = refused(capsys, "--replay", "recording")
    assert error["code"] == "recording-version"
    assert "0.0.1" in error["message"]


def test_a_recording_that_is_there_is_not_written_over(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    begun(folder)
    assert refused(capsys, "--record", "recording")["code"] == "recording-exists"


def test_a_key_that_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(failure(401, "sk-never-shown is no key")) as server:
        monkeypatch.setenv("HTAM_BASE_URL", server.url)
        error = refused(capsys)
    assert error["code"] == "model-key"
    assert "HTAM_API_KEY" in error["remedy"]
