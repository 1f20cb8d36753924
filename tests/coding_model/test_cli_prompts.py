"""`htam prompts`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from htam_agent.cli.prompts import prompts_app
from htam_agent.errors import SettingsError


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from the developer's settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HTAM_PROMPTS", raising=False)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(prompts_app, list(arguments))


def test_list_names_each_prompt_and_its_file() -> None:
    result = invoke("list")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()] == [
        "system-cpp", "system-cuda", "code-cpp", "code-cuda", "repair-cpp", "repair-cuda", "direct",
    ]  # fmt: skip
    shown = json.loads(invoke("list", "--json").output)
    assert shown["schema"] == "htam.prompts/1"
    assert {prompt["origin"] for prompt in shown["prompts"]} == {"built-in"}
    assert "direction" in shown["prompts"][2]["variables"]


def test_show_prints_the_text(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "repair.md").write_text("Mend {{ reason }}.\n")
    assert invoke("show", "repair", "--prompts", str(tmp_path / "mine")).output == "Mend {{ reason }}.\n"
    shown = json.loads(invoke("show", "code", "--backend", "cpp", "--json").output)
    assert "## The device" in shown["text"]
    assert shown["prompt"]["name"] == "code-cpp"
    assert shown["rendered"] is None


def test_show_renders_an_example() -> None:
    text = invoke("show", "code-cuda", "--rendered").output
    assert "class Model(nn.Module)" in text
    assert "{%" not in text


def test_the_setting_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "repair.md").write_text("Mend it.\n")
    monkeypatch.setenv("HTAM_PROMPTS", str(tmp_path / "mine"))
    assert invoke("show", "repair").output == "Mend it.\n"


def test_check_passes_for_the_built_in_prompts() -> None:
    result = invoke("check")
    assert result.exit_code == 0, result.output
    assert result.output.count("ok, about") == 7


def test_check_tells_sizes_and_parts() -> None:
    shown = json.loads(invoke("check", "--json").output)
    sizes = {prompt["name"]: prompt["tokens"] for prompt in shown["prompts"]}
    assert all(50 < size < 2000 for size in sizes.values()), sizes
    assert all("parts/rules.md (built-in)" in prompt["parts"] for prompt in shown["prompts"][2:4])


@pytest.mark.parametrize("text", ["{{ nothing }}", "{% if %}", "{{ tried[7] }}"])
def test_check_fails_for_a_prompt_that_does_not_fit(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "repair.md").write_text(text)
    result = invoke("check", "--prompts", str(tmp_path / "mine"))
    assert isinstance(result.exception, SettingsError)
    assert "repair.md" in result.exception.message


def test_an_unknown_prompt_is_named() -> None:
    result = invoke("show", "haiku")
    assert isinstance(result.exception, SettingsError)
    assert "haiku" in result.exception.message


def test_prompts_are_found_in_an_installed_package(tmp_path: Path) -> None:
    """Laid out as in a wheel: the prompts inside of the package, no checkout round it."""
    root = Path(__file__).resolve().parents[2]
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "htam_agent", tmp_path / "site" / "htam_agent", ignore=ignored)
    shutil.copytree(root / "prompts", tmp_path / "site" / "htam_agent" / "_prompts")
    checked = subprocess.run(
        [sys.executable, "-m", "htam_agent", "prompts", "check", "--json"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [prompt["path"] for prompt in json.loads(checked.stdout)["prompts"]]
    assert len(paths) == 7
    assert all(path.startswith(str(tmp_path / "site")) for path in paths)
