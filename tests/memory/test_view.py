"""`htam memory`: what people and scripts see."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from htam_agent.cli.memory import memory_app
from htam_agent.errors import StoreError, UsageError
from htam_agent.memory.seeding import load_seed
from htam_agent.memory.store import MemoryStore
from htam_agent.memory.view import MemoryDrawing, MemoryList, MemoryShown, MemoryStats
from tests.support.memory import DIRECTIONS, experience


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory with the shipped seed and two measured steps."""
    made = tmp_path_factory.mktemp("view") / "memory"
    known = next(strategy.id for strategy in load_seed().strategies if strategy.backend == "cpp")
    with MemoryStore.open(made) as store:
        store.add_experiences(
            [
                experience("run:1:0", "memory-access", known, 0.5),
                experience("run:2:0", "cache-policy", known, None, prefix=("memory-access",)),
            ]
        )
    return made


def ask(folder: Path, *words: str) -> str:
    answer = CliRunner().invoke(memory_app, [*words, "--memory", str(folder)], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def ask_json(folder: Path, *words: str) -> dict[str, object]:
    found = dict(json.loads(ask(folder, *words, "--json").splitlines()[-1]))
    assert found["schema"] == "htam.memory/1"
    return found


def test_stats_are_the_contracts_object(folder: Path) -> None:
    seed = load_seed()
    expected = {
        "schema": "htam.memory/1",
        "directions": 12,
        "strategies": len(seed.strategies),
        "transitions": len(seed.transitions),
        "experiences": 2,
    }
    assert ask_json(folder, "stats") == expected
    assert MemoryStats.model_validate(expected).experiences == 2
    assert f"strategies   {len(seed.strategies):>7}" in ask(folder, "stats")


def test_list_takes_kind_and_backend(folder: Path) -> None:
    everything = MemoryList.model_validate(ask_json(folder, "list")).records
    assert {line.kind for line in everything} == {"directions", "strategies", "transitions", "experiences"}
    gpu = MemoryList.model_validate(ask_json(folder, "list", "--kind", "strategies", "--backend", "cuda")).records
    assert gpu
    assert all(line.backend == "cuda" and line.provenance == "seed" for line in gpu)
    steps = MemoryList.model_validate(ask_json(folder, "list", "--kind", "experiences")).records
    assert [line.id for line in steps] == ["run:1:0", "run:2:0"]
    assert "8 ms -> 4 ms" in steps[0].summary
    assert "failed, 8 ms -> none" in steps[1].summary
    assert (
        MemoryList.model_validate(ask_json(folder, "list", "--kind", "experiences", "--backend", "cuda")).records == []
    )
    assert "start->data-reuse" in ask(folder, "list", "--kind", "transitions")


@pytest.mark.parametrize("name", ["memory-access", "start->data-reuse", "run:1:0"])
def test_show_gives_the_whole_record(folder: Path, name: str) -> None:
    shown = MemoryShown.model_validate(ask_json(folder, "show", name))
    assert shown.record.id == name
    told = yaml.safe_load(ask(folder, "show", name))
    assert told == shown.record.model_dump(mode="json", exclude_none=True)


def test_show_of_an_unknown_id(folder: Path) -> None:
    with pytest.raises(StoreError, match="'nothing'") as caught:
        ask(folder, "show", "nothing")
    assert "htam memory list" in caught.value.remedy


def test_pictures_of_one_device_and_of_all(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    for name, start in (("a.png", b"\x89PNG"), ("a.mmd", b"flowchart LR")):
        told = ask(folder, "graph", "--out", str(tmp_path / name))
        assert str(tmp_path / name) in told
        assert (tmp_path / name).read_bytes().startswith(start)
    again = MemoryDrawing.model_validate(ask_json(folder, "graph", "--out", str(tmp_path / "b.svg")))
    assert again.out == str(tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes().startswith(b"<?xml")
    assert "measured" in (tmp_path / "a.mmd").read_text()
    ask(folder, "graph", "--device", "sm_90", "--backend", "cuda", "--out", str(tmp_path / "c.mmd"))
    assert "measured" not in (tmp_path / "c.mmd").read_text()


@pytest.mark.parametrize(("name", "said"), [("a.jpg", ".svg"), ("nowhere/a.png", "cannot be written")])
def test_a_picture_that_cannot_be_written(folder: Path, tmp_path: Path, name: str, said: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    with pytest.raises(UsageError) as caught:
        ask(folder, "graph", "--out", str(tmp_path / name))
    assert said in str(caught.value)


def test_without_matplotlib_the_extra_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"htam_agent\[plot\]|cannot be imported") as caught:
        ask(folder, "graph", "--out", str(tmp_path / "a.png"))
    assert caught.value.code == "extra-missing"
    ask(folder, "graph", "--out", str(tmp_path / "a.mmd"))


def test_the_drawing_has_every_direction_transition_and_measurement(folder: Path) -> None:
    mermaid = MemoryDrawing.model_validate(ask_json(folder, "graph")).mermaid
    assert ask(folder, "graph").strip() == mermaid.strip()
    seed = load_seed()
    lines = mermaid.splitlines()
    for direction in seed.directions:
        owned = len([strategy for strategy in seed.strategies if strategy.direction == direction.id])
        assert any(line.strip().startswith(f'{direction.id}["{direction.title}<br/>{owned} ') for line in lines)
    assert len([line for line in lines if "-->" in line or "==>" in line]) == len(seed.transitions)
    assert '    start ==>|"0.30, measured +0.50 (1)"| memory-access' in lines
    assert '    memory-access ==>|"0.14, measured -0.10 (1)"| cache-policy' in lines


def test_words_from_a_pack_reach_no_terminal_and_break_no_picture(tmp_path: Path) -> None:
    title = 'Bad"] \x1b[31m<b>$\\frac{$'
    bad = DIRECTIONS[0].model_copy(
        update={"id": "bad", "title": title, "intent": "Red \x1b]0;mine\x07words", "provenance": "user"}
    )
    memory = tmp_path / "memory"
    with MemoryStore.open(memory) as store:
        store.put("directions", {bad.id: bad})
    listed = ask(memory, "list")
    assert "\x1b" not in listed
    assert "Red words" in listed
    drawn = ask(memory, "graph")
    assert 'bad["Bad#34;] #60;b#62;$\\frac{$<br/>0 strategies"]' in drawn
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    for name in ("a.svg", "a.png"):
        ask(memory, "graph", "--out", str(tmp_path / name))
    assert "\x1b" not in (tmp_path / "a.svg").read_text()
