"""The tables `tools` and `mcp` in every layer, and each way to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.errors import SettingsError
from htam_agent.settings import Settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


TOML = """
[tools]
compile = "nvrtc"
profile = {mcp = "perf/profile"}

[mcp.servers.perf]
command = "perf-server"
args = ["--fast"]
env = {KEY = "hidden-key"}
"""


def test_tables_of_the_file_and_json_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "htam.toml").write_text(TOML)
    settings = Settings.load()
    assert settings.tools.given() == {"compile": "nvrtc", "profile": "mcp:perf/profile"}
    assert settings.mcp.servers["perf"].args == ("--fast",)
    shown = {line.name: line for line in settings.explain()}
    assert shown["tools"].value == "compile = nvrtc, profile = mcp:perf/profile"
    assert shown["tools"].origin == "htam.toml"
    assert shown["mcp"].value == "perf (command)"
    assert "hidden-key" not in repr(settings)
    monkeypatch.setenv("HTAM_TOOLS", '{"run": {"mcp": "gpu/run"}}')
    monkeypatch.setenv("HTAM_MCP", '{"mcpServers": {"gpu": {"url": "http://127.0.0.1:1/mcp"}}}')
    settings = Settings.load()
    assert settings.tools.given() == {"run": "mcp:gpu/run"}
    assert settings.mcp.servers["gpu"].url == "http://127.0.0.1:1/mcp"


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[tools]\ncompiler = "x"', ["tools.compiler", "no key that is known"]),
        ('[tools]\ncompile = ""', ["tools.compile", "empty"]),
        ("[tools]\ncompile = 3", ["tools.compile"]),
        ('[tools]\nprofile = {server = "a/b"}', ["tools.profile", 'mcp = "server/tool"']),
        ('tools = "{"', ["tools", "is not JSON"]),
        ("[mcp.servers.a]", ["mcp.servers.a", "either a command or a url"]),
        ('[mcp.servers.a]\ncommand = "x"\nenv = {KEY = 4711}', ["mcp.servers.a.env.KEY"]),
        ('[mcp.servers.a]\ncommand = "x"\nautoApprove = ["4711"]', ["mcp.servers.a.autoApprove", "no key"]),
    ],
)
def test_a_table_that_does_not_fit_is_one_sentence(folder: Path, toml: str, words: list[str]) -> None:
    (folder / "htam.toml").write_text(toml)
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "4711" not in str(caught.value), "a table of servers may hold keys"
    assert "\n" not in caught.value.message
