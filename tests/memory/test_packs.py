"""Packs and merging over real stores: what is carried, what is refused, and that nothing counts twice."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.errors import StoreError
from htam_agent.memory.merging import merge, read_memory
from htam_agent.memory.model import Strategy
from htam_agent.memory.packs import read_pack, write_pack
from htam_agent.memory.records import Kind, MemoryRecord
from htam_agent.memory.store import MemoryStore
from tests.support.memory import SEED, direction, experience, features, strategy, transition


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("seeded") / "memory"
    MemoryStore.open(made, seed=SEED).close()
    return made


@pytest.fixture
def store(tmp_path: Path, seeded: Path) -> Iterator[MemoryStore]:
    shutil.copytree(seeded, tmp_path / "memory")
    with MemoryStore.open(tmp_path / "memory", seed=SEED) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path, seeded: Path) -> Iterator[MemoryStore]:
    """Another memory, with three measured steps and a user's strategy."""
    shutil.copytree(seeded, tmp_path / "other")
    with MemoryStore.open(tmp_path / "other", seed=SEED) as opened:
        opened.add_experiences([experience(f"theirs:{i}:0:0", "wide", "wide-loads", i / 4) for i in range(3)])
        opened.add_strategies([strategy("mine", "reuse")])
        yield opened


@pytest.fixture
def pack(tmp_path: Path, other: MemoryStore) -> Path:
    path = tmp_path / "theirs.jsonl"
    write_pack(other, path)
    return path


@pytest.fixture(scope="module")
def whole(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a pack."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(seeded, folder / "memory")
    with MemoryStore.open(folder / "memory", seed=SEED) as store:
        store.add_experiences([experience(f"theirs:{i}:0:0", "wide", "wide-loads", i / 4) for i in range(3)])
        write_pack(store, folder / "pack.jsonl")
    return (folder / "pack.jsonl").read_bytes()


def rewritten(pack: Path, change: object, lines: list[dict[str, object]] | None = None) -> Path:
    """The pack with a changed header, and other lines under a right checksum."""
    header = json.loads(pack.read_text().splitlines()[0])
    body = pack.read_bytes().partition(b"\n")[2]
    if lines is not None:
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        header |= {"sha256": hashlib.sha256(body).hexdigest()}
        header["counts"] = {}
        for line in [line for line in lines if line["kind"] != "opinions"]:
            header["counts"][line["kind"]] = header["counts"].get(line["kind"], 0) + 1
    assert isinstance(change, dict)
    pack.write_bytes(json.dumps({**header, **change}).encode() + b"\n" + body)
    return pack


def lines_of(pack: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in pack.read_text().splitlines()[1:]]


def test_a_pack_carries_what_the_seed_does_not_hold(pack: Path, store: MemoryStore, other: MemoryStore) -> None:
    header, records = read_pack(pack)
    assert header.counts == {"directions": 0, "strategies": 1, "transitions": 0, "experiences": 3}
    assert [record.id for record in records["strategies"]] == ["mine"]
    report = merge(store, records, str(pack))
    assert report.added == header.counts
    assert store.fingerprint == other.fingerprint


def test_merging_again_counts_nothing_twice(pack: Path, store: MemoryStore) -> None:
    records = read_pack(pack)[1]
    merge(store, records, "once")
    before = store.fingerprint
    report = merge(store, records, "twice")
    assert sum(report.added.values()) == 0
    assert report.known == {"directions": 0, "strategies": 1, "transitions": 0, "experiences": 3}
    assert store.fingerprint == before


def test_a_replayed_step_with_a_later_date_is_the_same_step(store: MemoryStore) -> None:
    one = experience("run:1:0:0", "wide", "wide-loads", created="2026-01-01T00:00:00+00:00")
    store.add_experience(one)
    again = one.model_copy(update={"created": "2026-01-02T00:00:00+00:00"})
    assert merge(store, {"experiences": [again]}, "replay").known["experiences"] == 1


def test_another_memory_is_merged_and_left_as_it_is(store: MemoryStore, other: MemoryStore, tmp_path: Path) -> None:
    before = other.fingerprint
    report = merge(store, read_memory(str(tmp_path / "other"), 5.0), "other")
    assert report.added["experiences"] == 3
    assert report.known["strategies"] == len(SEED.strategies)
    other.refresh()
    assert other.fingerprint == before


def test_a_learned_direction_comes_with_its_experiences(store: MemoryStore) -> None:
    learned = direction("novel").model_copy(update={"provenance": "learned"})
    merge(store, {"directions": [learned], "experiences": [experience("a:1:0:0", "novel", "any")]}, "pack")
    assert "novel" in store.directions
    assert [record.direction for record in store.experiences] == ["novel"]


def test_records_of_another_versions_seed_are_left_out(store: MemoryStore) -> None:
    report = merge(store, {"strategies": [strategy("wide-loads", "wide", how="Otherwise.")]}, "pack")
    assert report.seed["strategies"] == 1
    assert store.strategies["wide-loads"] == SEED.strategies[0]


def test_an_id_with_other_content_is_refused_kept_or_replaced(store: MemoryStore) -> None:
    mine = experience("run:1:0:0", "wide", "wide-loads", 0.5)
    theirs = experience("run:1:0:0", "wide", "wide-loads", 0.9)
    store.add_experience(mine)
    with pytest.raises(StoreError, match="'run:1:0:0'") as caught:
        merge(store, {"experiences": [experience("new:1:0:0", "wide", "wide-loads"), theirs]}, "pack")
    assert caught.value.code == "memory-conflict"
    assert list(store.experiences) == [mine]
    assert merge(store, {"experiences": [theirs]}, "pack", conflicts="keep").kept["experiences"] == 1
    assert list(store.experiences) == [mine]
    assert merge(store, {"experiences": [theirs]}, "pack", conflicts="replace").replaced["experiences"] == 1
    assert list(store.experiences) == [theirs]


@pytest.mark.parametrize("kind", ["directions", "strategies", "transitions"])
def test_a_pack_overrides_the_seed_only_when_told(store: MemoryStore, kind: Kind) -> None:
    theirs: dict[Kind, MemoryRecord] = {
        "directions": direction("wide", memory=0.1).model_copy(update={"provenance": "learned"}),
        "strategies": strategy("wide-loads", "reuse").model_copy(update={"provenance": "user"}),
        "transitions": transition("start", "wide", -1.0).model_copy(update={"provenance": "learned"}),
    }
    before = store.fingerprint
    with pytest.raises(StoreError, match=theirs[kind].id) as caught:
        merge(store, {kind: [theirs[kind]]}, "pack")
    assert caught.value.code == "memory-conflict"
    assert merge(store, {kind: [theirs[kind]]}, "pack", conflicts="keep").kept[kind] == 1
    assert store.fingerprint == before
    report = merge(store, {kind: [theirs[kind]]}, "pack", conflicts="replace")
    assert (report.added[kind], report.replaced[kind]) == (0, 1)
    assert theirs[kind] in store.records(kind)


def test_what_another_process_wrote_during_the_trial_is_not_overwritten(store: MemoryStore, tmp_path: Path) -> None:
    mine, theirs = strategy("mine", "wide", how="Mine."), strategy("mine", "wide", how="Theirs.")

    def trial(given: Sequence[Strategy]) -> list[str]:
        with MemoryStore.open(tmp_path / "memory", seed=SEED) as other:
            other.add_strategies([mine])
        return []

    given = {"strategies": [theirs.model_copy(update={"provenance": "user"})]}
    with pytest.raises(StoreError, match="'mine'") as caught:
        merge(store, given, "pack", check=trial)
    assert caught.value.code == "memory-conflict"
    assert store.strategies["mine"].how == "Mine."


def test_a_long_write_lets_others_in_between(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("htam_agent.memory.records.TURN", 2)
    held: list[bool] = []

    def look(seconds: float) -> None:
        with (tmp_path / "memory" / "htam.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(False)

    monkeypatch.setattr("htam_agent.memory.records.time.sleep", look)
    store.add_experiences([experience(f"mine:{i}:0:0", "wide", "wide-loads") for i in range(5)])
    theirs = [experience(f"theirs:{i}:0:0", "wide", "wide-loads") for i in range(5)]
    assert merge(store, {"experiences": theirs}, "pack").added["experiences"] == 5
    assert len(held) == 4
    assert not store.refresh()
    assert len(store.experiences) == 10


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"kind": "strategies", "record": strategy("lost", "nowhere").model_dump() | {"provenance": "user"}}, "lost"),
        ({"kind": "experiences", "record": experience("lost:1:0", "nowhere", "any").model_dump()}, "lost:1:0"),
        ({"kind": "experiences", "record": experience("bad:1:0", "wide", "any", time_before_ms=-1).model_dump()},
         "bad:1:0"),
        ({"kind": "experiences", "record": experience("theirs:0:0:0", "wide", "any").model_dump()}, "theirs:0:0:0"),
        ({"kind": "strategies", "record": {"id": "odd", "direction": "wide"}}, "odd"),
        ({"kind": "directions", "record": direction("odd").model_dump() | {"flavour": "salty"}}, "flavour"),
        ({"kind": "opinions", "record": {}}, "Line 6"),
        ({"kind": "directions",
          "record": direction("odd").model_dump() | {"symptoms": {"memory": float("nan")}, "provenance": "user"}},
         "odd"),
        ({"kind": "directions",
          "record": direction("odd").model_dump() | {"symptoms": {"memory": 1e9}, "provenance": "user"}}, "odd"),
        ({"kind": "transitions",
          "record": transition("wide", "wide", 0.1).model_dump()
          | {"pseudo_counts": float("inf"), "provenance": "user"}}, "wide->wide"),
        ({"kind": "experiences",
          "record": experience("bad:1:0", "wide", "any").model_dump() | {"seconds": float("nan")}}, "bad:1:0"),
        ({"kind": "experiences",
          "record": experience("bad:1:0", "wide", "any").model_dump()
          | {"prefix": ["wide"], "prefix_outcomes": [float("-inf")]}}, "bad:1:0"),
        ({"kind": "experiences",
          "record": experience("bad:1:0", "wide", "wide-loads").model_dump()
          | {"prefix": ["wide"], "prefix_outcomes": [0.1, 0.2]}}, "2 outcomes for the 1 steps"),
        ({"kind": "experiences",
          "record": experience("bad:1:0", "wide", "any").model_dump()
          | {"features": features().model_dump() | {"arithmetic_intensity": float("inf")}}}, "bad:1:0"),
    ],
)  # fmt: skip
def test_a_bad_record_is_named_and_the_memory_is_as_before(
    pack: Path, store: MemoryStore, line: dict[str, object], named: str
) -> None:
    before = store.fingerprint
    rewritten(pack, {}, [*lines_of(pack), line])
    with pytest.raises(StoreError, match=named) as caught:
        merge(store, read_pack(pack)[1], "pack")
    assert caught.value.remedy
    store.refresh()
    assert store.fingerprint == before
    assert "mine" not in store.strategies


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema": "htam.memory-pack/2"}, "memory-pack-schema"),
        ({"records": 99}, "memory-pack-schema"),
        ({"sha256": "0" * 64}, "memory-pack-damaged"),
        ({"counts": {"experiences": 4}}, "memory-pack-damaged"),
        ({"novel": 1}, "memory-pack"),
    ],
)
def test_a_pack_of_another_form_or_content(pack: Path, change: dict[str, object], code: str) -> None:
    with pytest.raises(StoreError) as caught:
        read_pack(rewritten(pack, change))
    assert caught.value.code == code
    assert str(pack) in caught.value.message


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[1]\n", b"hello\n", b"{}\n"])
def test_what_is_no_pack(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is no pack"):
        read_pack(path)


def test_a_pack_that_was_cut_off(pack: Path) -> None:
    pack.write_bytes(pack.read_bytes()[:-40])
    with pytest.raises(StoreError, match="SHA-256"):
        read_pack(pack)


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
def test_a_pack_with_any_byte_changed_or_cut_is_refused(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, place: float, flip: int, cut: bool
) -> None:
    """Never another exception, and never other records: what can still be read is what was written."""
    at = int(place * len(whole))
    path = tmp_path_factory.getbasetemp() / "changed.jsonl"
    path.write_bytes(whole[:at] if cut else whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    names, told = [], ""
    try:
        names = [record.id for record in read_pack(path)[1]["experiences"]]
    except StoreError as error:
        told = error.message
    # Facts about the writer in the header (its version, its embedder) can be anything.
    assert names == ["theirs:0:0:0", "theirs:1:0:0", "theirs:2:0:0"] or str(path) in told


def test_a_pack_that_cannot_be_read_or_written(tmp_path: Path, store: MemoryStore) -> None:
    with pytest.raises(StoreError, match="No such file"):
        read_pack(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written") as caught:
        write_pack(store, tmp_path / "file" / "pack.jsonl")
    assert caught.value.code == "file-not-writable"


def test_what_is_no_other_memory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no memory and no pack"):
        read_memory(str(tmp_path / "nothing"), 1.0)
    assert not (tmp_path / "nothing").exists()


def test_an_export_writes_over_packs_only(tmp_path: Path, store: MemoryStore) -> None:
    target = tmp_path / "pack.jsonl"
    target.touch()
    for _ in range(2):
        write_pack(store, target)
        read_pack(target)
    target.write_text("import torch\n")
    for wrong in (target, tmp_path):
        with pytest.raises(StoreError, match="is no pack") as caught:
            write_pack(store, wrong)
        assert caught.value.code == "memory-pack-target"
        assert caught.value.remedy
    assert target.read_text() == "import torch\n"
    assert [path for path in tmp_path.iterdir() if path.suffix == ".part"] == []
