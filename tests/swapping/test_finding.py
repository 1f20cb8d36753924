"""From a choice to an implementation of somebody else's package, and every way in which it may not be one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from htam_agent.errors import SettingsError
from htam_agent.settings import Settings
from htam_agent.swapping.choices import SeamName
from htam_agent.swapping.chosen import choose, coder_name
from htam_agent.swapping.compilers import OtherCompiler
from htam_agent.swapping.finding import place_of
from htam_agent.swapping.seams import SEAMS
from tests.swapping.third_party import install


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = install(tmp_path_factory.mktemp("site"))
    (folder / "broken_import.py").write_text("import no_such_dependency\n")
    (folder / "broken_module.py").write_text("raise RuntimeError('no licence')\n")
    return folder


@pytest.fixture(autouse=True)
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(site)


def settings(**tools: str) -> Settings:
    return Settings.load({"tools": tools})


def test_an_entry_point_an_import_path_and_an_object(site: Path) -> None:
    for choice in ("fastcc", "fastcc:Compiler", "fastcc:compiler"):
        found = choose(settings(compile=choice)).swapped.compiler
        assert isinstance(found, OtherCompiler)
        assert (found.label, found.implementation.version, found.served) == (choice, "1.2", False)
        assert found.folders == (str(site / "fastcc"),)
    chosen = choose(settings(profile="fastprof", run="fastcc:Judge", coder="fastcc:RefusingCoder"))
    assert type(chosen.swapped.profiler).__name__ == "Profiler"
    assert type(chosen.swapped.runner).__name__ == "Judge"
    assert chosen.coder is not None
    assert chosen.coder.name == "refusing"


def test_built_in_names_choose_what_is_built_in() -> None:
    chosen = choose(settings(compile="g++", run="strict-evaluator", coder="model", executor="local"), "cpp")
    assert chosen.swapped.compiler is None
    assert chosen.swapped.runner is None
    assert chosen.coder is None
    assert coder_name(settings(coder="model")) == "model"
    assert coder_name(settings(coder="fastcc:RefusingCoder")) == "custom"
    assert coder_name(settings()) == "template"


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"compile": "no_such_package:Compiler"}, ["tools.compile", "no module 'no_such_package'"]),
        ({"compile": "fastcc.inner:Compiler"}, ["no module 'fastcc.inner'"]),
        ({"compile": "broken_import:X"}, ["importing broken_import fails", "no_such_dependency"]),
        ({"compile": "broken_module:X"}, ["importing broken_module fails", "RuntimeError: no licence"]),
        ({"compile": "fastcc:Slowcc"}, ["fastcc has no 'Slowcc'"]),
        ({"compile": "slowcc"}, ["'slowcc'", "entry point of the group htam_agent.compile"]),
        ({"compile": "fast cc:x"}, ["no import path"]),
        ({"profile": "fastcc:NoProfile"}, ["tools.profile", "NoProfile has no method profile(request)"]),
        ({"profile": "fastcc:WrongParameters"}, ["does not take the call (request)", "deep"]),
        ({"profile": "fastcc:WrongTypes"}, ["annotated to return int", "takes request as str"]),
        ({"profile": "fastcc:NeedsArguments"}, ["cannot be made without arguments", "key"]),
        ({"run": "fastcc:Profiler"}, ["has no method run(request)"]),
        ({"embedder": "fastcc:Profiler"}, ["Profiler has no method embed(texts)"]),
        ({"evaluator": "fastcc:HalfEvaluator"}, ["no method baselines", "no method run"]),
        ({"evaluator": "mcp:a/b"}, ["cannot serve this seam"]),
        ({"evaluator": "fastcc:HalfEvaluator", "run": "fastcc:Judge"}, ["both set"]),
        ({"executor": "ssh"}, ["confined processes of this machine"]),
        ({"compile": "nvrtc"}, ["builds for cuda", "backend is cpp"]),
        ({"profile": "mcp:perf"}, ["names no server and tool"]),
        ({"profile": "mcp:perf/profile"}, ["no MCP server 'perf'", "There are none"]),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_any_work(tools: dict[str, str], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        choose(settings(**tools), "cpp")
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert caught.value.remedy
    assert "\n" not in said


@example_settings(max_examples=25)
@given(st.text(max_size=40), st.sampled_from(sorted(SEAMS)))
def test_any_text_is_a_place_or_one_sentence(text: str, name: SeamName) -> None:
    seam, said = SEAMS[name], ""
    try:
        place = place_of(seam, text)
    except SettingsError as error:
        place, said = None, error.message
    else:
        assert place is not None or text in seam.built_in or text.startswith("mcp:")
    assert not said or (f"tools.{name}" in said and "\n" not in said)


def test_the_current_folder_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "of_the_folder.py").write_text("class Compiler: ...\n")
    assert "" not in sys.path
    with pytest.raises(SettingsError, match="not in the current folder"):
        choose(settings(compile="of_the_folder:Compiler"))
