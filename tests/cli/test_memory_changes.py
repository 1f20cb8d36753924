"""`htam memory export, import, merge, prune, remove, reset`: what they print, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from htam_agent.cli.memory import memory_app
from htam_agent.errors import HtamError, StoreError, UsageError
from htam_agent.memory.store import MemoryStore
from htam_agent.schemas import FOLDER
from tests.support.memory import experience, strategy

KNOWN = ("instruction-throughput", "cpp-simd-loops")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory with two measured steps, a user's strategy, and one that overrides the seed's."""
    folder = tmp_path_factory.mktemp("made") / "memory"
    with MemoryStore.open(folder) as store:
        store.add_experiences(
            [experience("a:1:0:0", *KNOWN, 0.5), experience("a:2:0:0", *KNOWN, None, created="2020-01-01T00:00:00")]
        )
        override = store.strategies["cpp-restrict-outputs"].model_copy(update={"how": "Mine."})
        store.add_strategies([strategy("words-only", "memory-access"), override])
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "memory")
    return tmp_path / "memory"


def ask(*words: str, code: int = 0) -> str:
    answer = CliRunner().invoke(memory_app, [*words], catch_exceptions=False)
    assert answer.exit_code == code, answer.output
    return answer.stdout


def ask_json(schema: str, *words: str) -> dict[str, object]:
    found = dict(json.loads(ask(*words, "--json").splitlines()[-1]))
    jsonschema.validate(found, json.loads((FOLDER / f"memory-{schema}.json").read_text()))
    assert found["schema"] == "htam.memory/1"
    return found


def refused(*words: str) -> HtamError:
    with pytest.raises(HtamError) as caught:
        ask(*words)
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    return caught.value


def test_a_pack_goes_from_one_memory_to_another(folder: Path, tmp_path: Path) -> None:
    pack = str(tmp_path / "pack.jsonl")
    found = ask_json("export", "export", pack, "--memory", str(folder))
    assert found["counts"] == {"directions": 0, "strategies": 2, "transitions": 0, "experiences": 2}
    words = ["import", pack, "--no-trial", "--memory", str(tmp_path / "other")]
    assert "'cpp-restrict-outputs'" in refused(*words).message, "the seed is not overridden unless that is said"
    told = ask(*words, "--conflicts", "replace")
    assert "1 strategies, 2 experiences from" in told
    assert "replaced: 1 strategies" in told
    again = ask_json("merge", *words)
    assert again["added"] == dict.fromkeys(("directions", "strategies", "transitions", "experiences"), 0)
    assert again["known"] == found["counts"]
    assert "known already" in ask("merge", pack, "--memory", str(tmp_path / "other"))
    assert "no records" in ask("export", pack, "--kind", "transitions", "--memory", str(folder))
    with MemoryStore.open(folder) as mine, MemoryStore.open(tmp_path / "other") as other:
        assert mine.fingerprint == other.fingerprint


def test_another_memory_is_merged(folder: Path, tmp_path: Path) -> None:
    words = ["merge", str(folder), "--no-trial", "--conflicts", "replace", "--memory", str(tmp_path / "other")]
    told = ask_json("merge", *words)
    assert told["added"] == {"directions": 0, "strategies": 1, "transitions": 0, "experiences": 2}
    assert told["replaced"] == {"directions": 0, "strategies": 1, "transitions": 0, "experiences": 0}
    assert refused("merge", "nowhere", "--memory", str(folder)).code == "memory-missing"


def test_a_conflict_is_refused_unless_it_is_decided(folder: Path, tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "other") as other:
        other.add_experience(experience("a:1:0:0", *KNOWN, 0.9))
    error = refused("merge", str(tmp_path / "other"), "--memory", str(folder))
    assert "'a:1:0:0'" in error.message
    assert "--conflicts keep" in error.remedy
    assert "replaced: 1 exp" in ask("merge", str(tmp_path / "other"), "--conflicts", "replace", "--memory", str(folder))


def test_pruning_needs_a_yes(folder: Path) -> None:
    words = ["prune", "--verdict", "failed", "--memory", str(folder)]
    assert "Nothing was removed; --yes" in ask(*words)
    assert ask_json("prune", *words)["going"] == ["a:2:0:0"]
    assert "1 of 2 experiences removed" in ask(*words, "--yes")
    assert "0 of 1 experiences would go" in ask("prune", "--older-than", "30", "--memory", str(folder))
    assert isinstance(refused("prune", "--memory", str(folder)), UsageError)


def test_strategies_of_users_are_removed(folder: Path) -> None:
    told = ask_json("remove", "remove", "words-only", "cpp-restrict-outputs", "--memory", str(folder))
    assert told["removed"] == ["cpp-restrict-outputs", "words-only"]
    assert told["restored"] == ["cpp-restrict-outputs"]
    assert "belongs to the seed" in refused("remove", "cpp-restrict-outputs", "--memory", str(folder)).message
    assert "is unknown" in refused("remove", "words-only", "--memory", str(folder)).message


def test_a_strategy_that_the_settings_name_can_be_removed(folder: Path, tmp_path: Path) -> None:
    """It must not be added again by the command that removes it."""
    lines = ["- id: words-only", "  direction: cache-policy", "  backend: cpp", "  title: Words", "  how: Just so."]
    (tmp_path / "own.yaml").write_text("\n".join(lines) + "\n")
    (tmp_path / "htam.toml").write_text('strategies = ["own.yaml"]\n')
    assert "cache-policy" in ask("show", "words-only", "--memory", str(folder))
    ask("remove", "words-only", "--memory", str(folder))
    (tmp_path / "htam.toml").unlink()
    assert "no record 'words-only'" in refused("show", "words-only", "--memory", str(folder)).message


def test_a_reset_needs_a_yes_and_keeps_the_old_memory(folder: Path) -> None:
    assert "Say --yes" in refused("reset", "--memory", str(folder)).remedy
    told = ask_json("reset", "reset", "--yes", "--memory", str(folder))
    with MemoryStore.open(folder) as new, MemoryStore.open(Path(str(told["aside"]))) as old:
        assert (len(new.experiences), len(old.experiences)) == (0, 2)
    assert "of the seed in" in ask("reset", "--yes", "--discard", "--memory", str(folder))


def test_what_is_damaged_is_said_with_the_way_out(folder: Path) -> None:
    (folder / "chroma.sqlite3").write_bytes(b"no database" * 1000)
    error = refused("stats", "--memory", str(folder))
    assert isinstance(error, StoreError)
    assert "htam memory reset" in error.remedy
    ask("reset", "--yes", "--memory", str(folder))
    assert "experiences        0" in ask("stats", "--memory", str(folder))
