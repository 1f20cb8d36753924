"""Settings: five layers, where each value came from, and every way to be wrong named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.cli import main
from htam_agent.errors import SettingsError
from htam_agent.settings import PREFIX, Settings, unknown_variables

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def origin(settings: Settings, name: str) -> str:
    return {line.name: line.origin for line in settings.explain()}[name]


def test_each_layer_wins_over_the_weaker_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [(Settings.load().steps, origin(Settings.load(), "steps"))]
    (folder / "htam.toml").write_text("steps = 2\n")
    seen.append((Settings.load().steps, origin(Settings.load(), "steps")))
    (folder / ".env").write_text("HTAM_STEPS=3\n")
    seen.append((Settings.load().steps, origin(Settings.load(), "steps")))
    monkeypatch.setenv("HTAM_STEPS", "4")
    seen.append((Settings.load().steps, origin(Settings.load(), "steps")))
    given = Settings.load({"steps": 5})
    seen.append((given.steps, origin(given, "steps")))
    assert seen == [(6, "default"), (2, "htam.toml"), (3, ".env"), (4, "environment"), (5, "command line")]


def test_the_memory_follows_the_runs_folder_unless_it_is_given() -> None:
    assert Settings.load({"runs": "elsewhere"}).memory == Path("elsewhere/memory")
    assert Settings.load({"runs": "elsewhere", "memory": "mine"}).memory == Path("mine")


def test_strategies_are_paths_in_every_layer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "htam.toml").write_text('strategies = ["a.yaml", "b"]\n')
    assert Settings.load().strategies == (Path("a.yaml"), Path("b"))
    monkeypatch.setenv("HTAM_STRATEGIES", "c.yaml:d")
    assert Settings.load().strategies == (Path("c.yaml"), Path("d"))
    assert Settings.load({"strategies": [Path("e")]}).strategies == (Path("e"),)


def test_foreign_and_empty_variables_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_text("DATABASE=x\nHTAM_SEED=\n")
    monkeypatch.setenv("HTAM_MODEL", "")
    monkeypatch.setenv("HTAM_KERNEL_DIR", "somewhere")
    loaded = Settings.load()
    assert (loaded.seed, loaded.model) == (None, None)
    assert unknown_variables(
        {"HTAM_KERNEL_DIR": "x", "HTAM_CONFINEMENT_OFF": "y", "HTAM_STEP": "1", "HOME": "y", "HTAM_STEPS": "2"}
    ) == ["HTAM_STEP"]


@pytest.mark.parametrize(
    ("toml", "env_file", "environment", "overrides", "words"),
    [
        ("stepz = 3\n", "", {}, {}, ("htam.toml", "'stepz'", "Did you mean steps?")),
        ("steps = 0\n", "", {}, {}, ("steps = 0", "htam.toml", "greater than or equal to 1")),
        ("steps = \n", "", {}, {}, ("htam.toml is not TOML",)),
        ("[run]\nsteps = 1\n", "", {}, {}, ("htam.toml", "'run'")),
        ("", "HTAM_STEPZ=3\n", {}, {}, (".env", "'HTAM_STEPZ'", "HTAM_STEPS")),
        ("", "HTAM_PRECISION=fp8\n", {}, {}, ("HTAM_PRECISION = 'fp8'", ".env", "'bf16'")),
        ("", "", {"HTAM_BACKEND": "rocm"}, {}, ("HTAM_BACKEND = 'rocm'", "the environment", "'cuda'")),
        ("", "", {"HTAM_RUNS_CAP_BYTES": "-1"}, {}, ("HTAM_RUNS_CAP_BYTES", "the environment")),
        ("", "", {}, {"steps": "many"}, ("--steps = 'many'", "the command line")),
        ("", "", {}, {"stepz": 1}, ("the command line", "'stepz'")),
    ],
)
def test_what_does_not_fit_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    toml: str,
    env_file: str,
    environment: dict[str, str],
    overrides: dict[str, object],
    words: tuple[str, ...],
) -> None:
    (folder / "htam.toml").write_text(toml)
    (folder / ".env").write_text(env_file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        Settings.load(overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_a_file_that_is_not_text_is_an_error_with_a_remedy(folder: Path) -> None:
    (folder / "htam.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"htam\.toml"):
        Settings.load()
    (folder / "htam.toml").unlink()
    (folder / ".env").write_bytes(b"HTAM_MODEL=\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"\.env"):
        Settings.load()


@given(st.integers(-5, 1005))
def test_a_number_is_taken_exactly_when_it_lies_in_the_range(steps: int) -> None:
    if 1 <= steps <= 1000:
        assert Settings.load({"steps": steps}).steps == steps
    else:
        with pytest.raises(SettingsError, match="steps"):
            Settings.load({"steps": steps})


def test_config_shows_origins_and_masks_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".env").write_text("HTAM_API_KEY=sk-very-secret\n")
    monkeypatch.setenv("HTAM_STEPS", "9")
    monkeypatch.setenv("HTAM_STEP", "9")
    for arguments in (["config"], ["config", "--json"]):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
        shown = capsys.readouterr()
        assert "sk-very-secret" not in shown.out + shown.err
    answer = json.loads(shown.out.splitlines()[-1])
    lines = {line["name"]: line for line in answer["settings"]}
    assert answer["schema"] == "htam.config/1"
    assert set(lines) == set(Settings.model_fields)
    assert (lines["steps"]["value"], lines["steps"]["origin"]) == ("9", "environment")
    assert lines["api_key"]["value"] == "**********"
    assert answer["unknown_variables"] == ["HTAM_STEP"]


def test_a_wrong_key_is_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load({"api_key": 4711})
    assert "4711" not in str(caught.value)


def test_the_example_lists_every_setting_and_loads(folder: Path) -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    listed = re.findall(rf"^# {PREFIX}(\w+)=", text, re.MULTILINE)
    assert [name.lower() for name in listed] == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"# {field.description}\n# {PREFIX}{name.upper()}=" in text
    (folder / ".env").write_text(re.sub(rf"^# ({PREFIX})", r"\1", text, flags=re.MULTILINE))
    assert {origin(Settings.load(), name) for name in Settings.model_fields} == {".env"}


@pytest.mark.parametrize(("name", "value", "other"), [("memory", "a", "b"), ("model", "a", "b"), ("prompts", "a", "b")])
def test_a_runs_settings_win_over_files_and_lose_to_what_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, other: str
) -> None:
    stored = {name: value}
    assert getattr(Settings.load().over(stored), name) == value
    (folder / "htam.toml").write_text(f"{name} = {other!r}\n")
    assert getattr(Settings.load().over(stored), name) == value
    (folder / ".env").write_text(f"HTAM_{name.upper()}={other}\n")
    assert getattr(Settings.load().over(stored), name) == value
    monkeypatch.setenv(f"HTAM_{name.upper()}", "environment")
    assert str(getattr(Settings.load().over(stored), name)) == "environment"
    assert str(getattr(Settings.load({name: "line"}).over(stored), name)) == "line"


def test_a_memory_folder_that_is_given_turns_the_runs_server_off() -> None:
    stored = {"memory": Path("a"), "chroma_url": "http://127.0.0.1:1"}
    assert Settings.load().over(stored).chroma_url == "http://127.0.0.1:1"
    assert Settings.load({"memory": "b"}).over(stored).chroma_url is None
