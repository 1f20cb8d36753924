"""Strategy files: what is read, and what is said of a file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.errors import StoreError
from htam_agent.memory.seedfiles import load_strategies, seed_strategies

GOOD = "- {id: one, direction: data-reuse, backend: cpp, title: One, how: So}\n"


def test_the_seed_loads() -> None:
    strategies = seed_strategies()
    assert sum(item.backend == "cpp" for item in strategies.values()) >= 14
    assert all(item.provenance == "seed" for item in strategies.values())


def test_files_and_folders_and_overriding(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "two.yml").write_text(GOOD.replace("How: So", "").replace("One", "Other"), encoding="utf-8")
    (tmp_path / "readme.txt").write_text("not a strategy", encoding="utf-8")
    assert load_strategies(tmp_path / "a", "user")["one"].provenance == "user"
    assert load_strategies([tmp_path / "a", tmp_path / "two.yml"])["one"].title == "Other"
    assert load_strategies(str(tmp_path / "two.yml"))["one"].title == "Other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {id: one", ["cannot be read"]),
        ("id: one", ["holds no list"]),
        ("", ["holds no list"]),
        ("- 3", ["Entry 1"]),
        (GOOD + "- {id: two, backend: cpp}", ["Entry 2 'two'", "direction: Field required"]),
        (GOOD.replace("how: So", "how: So, edit: {mapping: diagonal}"), ["Entry 1 'one'", "edit.mapping"]),
        (GOOD.replace("how: So", "how: So, bloc: x"), ["bloc"]),
        (GOOD + GOOD, ["two entries with the id 'one'"]),
        ("- !!python/object/apply:os.system ['true']", ["cannot be read"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(StoreError) as caught:
        load_strategies(file)
    assert str(file) in caught.value.message
    for word in words:
        assert word in caught.value.message
    assert caught.value.remedy


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no strategy file"):
        load_strategies(tmp_path / "none.yaml")
