"""The store over a real embedded Chroma: seeding, reopening, users' strategies, and every way to be refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import chromadb
import pytest

from htam_agent.errors import StoreError
from htam_agent.memory.attention import score_directions
from htam_agent.memory.embed import HashingEmbedder
from htam_agent.memory.model import SCHEMA_VERSION
from htam_agent.memory.retrieval import retrieve_strategies
from htam_agent.memory.store import MemoryStore
from tests.support.memory import SEED, direction, experience, state, strategy, transition

COUNTS = {"directions": 2, "strategies": 4, "transitions": 4, "experiences": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory with the small seed, made once and copied by whoever changes it."""
    made = tmp_path_factory.mktemp("seeded") / "memory"
    MemoryStore.open(made, seed=SEED).close()
    return made


@pytest.fixture
def store(folder: Path, seeded: Path) -> Iterator[MemoryStore]:
    shutil.copytree(seeded, folder)
    with MemoryStore.open(folder, seed=SEED) as opened:
        yield opened


def contents(folder: Path) -> list[str] | dict[str, str]:
    """Every row of a sound database (Chroma counts its own openings in `acquire_write`), else every byte."""
    try:
        with closing(sqlite3.connect(f"{(folder / 'chroma.sqlite3').as_uri()}?mode=ro", uri=True)) as database:
            return [line for line in database.iterdump() if '"acquire_write"' not in line]
    except sqlite3.Error:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()
        }


def refused(folder: Path, code: str, **options: object) -> StoreError:
    """Opening must fail with this code, and leave everything as it was."""
    before = contents(folder) if folder.is_dir() else None
    with pytest.raises(StoreError) as caught:
        MemoryStore.open(folder, seed=SEED, **options)
    assert caught.value.code == code
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    if before is not None:
        assert contents(folder) == before
    return caught.value


def test_a_new_memory_has_the_seed_and_answers_the_same_after_reopening(folder: Path) -> None:
    with MemoryStore.open(folder, seed=SEED) as first:
        assert first.counts() == COUNTS
        first.add_experiences([experience(f"run:{i}:0", "wide", "wide-loads", i / 10) for i in range(5)])
        answers = score_directions(state(seed=5, steps_left=3), first), retrieve_strategies(state(), "wide", first)
    with MemoryStore.open(folder, seed=SEED) as again:
        assert again.counts() == {**COUNTS, "experiences": 5}
        assert again.notes == []
        assert list(again.experiences) == list(first.experiences)
        assert dict(again.strategies) == {record.id: record for record in SEED.strategies}
        assert dict(again.transitions) == {record.id: record for record in SEED.transitions}
        assert answers == (
            score_directions(state(seed=5, steps_left=3), again),
            retrieve_strategies(state(), "wide", again),
        )


def test_a_replayed_step_rewrites_its_record(folder: Path, store: MemoryStore) -> None:
    store.add_experience(experience("run:1:0", "wide", "wide-loads", None))
    store.add_experience(experience("run:1:0", "wide", "wide-loads", 0.5))
    assert [record.verdict for record in store.experiences] == ["correct"]
    store.close()
    with MemoryStore.open(folder, seed=SEED) as again:
        assert [record.verdict for record in again.experiences] == ["correct"]


def test_more_records_than_a_page_are_all_read(folder: Path, store: MemoryStore) -> None:
    many = [experience(f"run:{i}:0", "wide", "wide-loads", (i % 10) / 10) for i in range(1005)]
    store.add_experiences(many)
    store.close()
    with MemoryStore.open(folder, seed=SEED) as again:
        assert {record.id for record in again.experiences} == {record.id for record in many}


def test_the_database_carries_marks_documents_and_filters(folder: Path, store: MemoryStore) -> None:
    store.add_experience(experience("run:1:0", "wide", "wide-loads", 0.5))
    store.close()
    client = chromadb.PersistentClient(str(folder))
    try:
        collection = client.get_collection("htam-strategies", embedding_function=None)
        assert collection.metadata["htam_schema"] == SCHEMA_VERSION
        assert collection.metadata["htam_embedder"] == HashingEmbedder().id
        found = collection.get(where={"$and": [{"direction": "reuse"}, {"backend": "cuda"}]}, include=["documents"])
        assert found["ids"] == ["keep-row-on-gpu"]
        assert json.loads(found["documents"][0])["direction"] == "reuse"
        near = collection.query(query_embeddings=list(HashingEmbedder().embed(["wide stores"])), n_results=1)
        assert near["ids"] == [["wide-stores"]]
        steps = client.get_collection("htam-experiences", embedding_function=None)
        assert steps.get(where={"verdict": "correct"})["ids"] == ["run:1:0"]
    finally:
        client.close()


@pytest.mark.parametrize(
    "change",
    [{"direction": "unheard-of"}, {"time_before_ms": 0.0}, {"time_after_ms": float("nan")}, {"floor_ms": -1.0}],
)
def test_an_impossible_experience_is_refused_and_nothing_of_its_batch_is_kept(
    store: MemoryStore, change: dict[str, object]
) -> None:
    bad = experience("bad", "wide", "wide-loads").model_copy(update=change)
    with pytest.raises(StoreError):
        store.add_experiences([experience("good", "wide", "wide-loads"), bad])
    assert store.counts() == COUNTS


def test_a_removed_seed_strategy_is_unreachable_and_what_was_learned_stays(folder: Path, store: MemoryStore) -> None:
    store.add_experience(experience("run:1:0", "reuse", "keep-row", 0.9))
    store.add_strategies([strategy("mine", "wide")])
    store.close()
    smaller = replace(
        SEED,
        strategies=tuple(record for record in SEED.strategies if record.id != "keep-row"),
        transitions=(*SEED.transitions[:3], transition("reuse", "wide", 0.25)),
    )
    with MemoryStore.open(folder, seed=smaller) as again:
        assert set(again.strategies) == {"wide-loads", "wide-stores", "keep-row-on-gpu", "mine"}
        assert again.transitions["reuse->wide"].prior == 0.25
        assert retrieve_strategies(state(), "reuse", again) == []
        assert [scored.direction for scored in score_directions(state(), again)] == ["wide"]
        assert [record.id for record in again.experiences] == ["run:1:0"]


def test_a_seeding_that_was_cut_short_is_done_again(folder: Path, store: MemoryStore) -> None:
    store.close()
    client = chromadb.PersistentClient(str(folder))
    client.get_collection("htam-transitions", embedding_function=None).delete(ids=["wide->reuse"])
    marks = client.get_collection("htam-directions", embedding_function=None)
    marks.modify(metadata={name: value for name, value in marks.metadata.items() if name != "htam_seed"})
    client.close()
    with MemoryStore.open(folder, seed=SEED) as again:
        assert again.counts() == COUNTS


def test_a_users_strategy_is_found_kept_replaced_and_removed(folder: Path, store: MemoryStore) -> None:
    store.add_strategies([strategy("mine", "wide", operators_any=["aten.exp"])])
    assert store.strategies["mine"].provenance == "user"
    assert "mine" in [scored.strategy.id for scored in retrieve_strategies(state(), "wide", store)]
    store.add_strategies([strategy("mine", "wide", how="Better.")])
    store.close()
    with MemoryStore.open(folder, seed=SEED) as again:
        assert again.strategies["mine"].how == "Better."
        again.remove_strategies(["mine"])
        assert "mine" not in [scored.strategy.id for scored in retrieve_strategies(state(), "wide", again)]
    with MemoryStore.open(folder, seed=SEED) as last:
        assert last.counts() == COUNTS


def test_a_user_may_override_a_seed_strategy_and_take_that_back(folder: Path, store: MemoryStore) -> None:
    store.add_strategies([strategy("wide-loads", "wide", how="Mine.")])
    store.close()
    changed = replace(SEED, directions=(*SEED.directions, direction("more")))
    with MemoryStore.open(folder, seed=changed) as again:
        assert again.strategies["wide-loads"].how == "Mine."
        assert len(again.notes) == 1
        assert "'wide-loads'" in again.notes[0]
        again.remove_strategies(["wide-loads"])
        assert again.strategies["wide-loads"] == SEED.strategies[0]
    with MemoryStore.open(folder, seed=changed) as last:
        assert last.strategies["wide-loads"] == SEED.strategies[0]


def test_wrong_users_strategies_are_refused(store: MemoryStore) -> None:
    with pytest.raises(StoreError, match="no direction 'nowhere'"):
        store.add_strategies([strategy("fine", "wide"), strategy("a", "nowhere")])
    with pytest.raises(StoreError, match="Two of the given"):
        store.add_strategies([strategy("a", "wide"), strategy("a", "wide")])
    for name in ("wide-loads", "unheard-of"):
        with pytest.raises(StoreError, match="Only strategies that were added"):
            store.remove_strategies([name])
    assert store.counts() == COUNTS


def test_garbage_in_the_place_of_the_database(folder: Path) -> None:
    folder.mkdir()
    (folder / "chroma.sqlite3").write_bytes(b"this is no database " * 500)
    assert "not a database" in refused(folder, "memory-corrupt").message


def test_a_truncated_database(folder: Path, store: MemoryStore) -> None:
    store.close()
    copied = folder.with_name("copied")
    shutil.copytree(folder, copied)
    database = copied / "chroma.sqlite3"
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])
    refused(copied, "memory-corrupt")


def test_a_damaged_record_is_named(folder: Path, store: MemoryStore) -> None:
    store.close()
    with closing(sqlite3.connect(folder / "chroma.sqlite3")) as database, database:
        database.execute(
            "UPDATE embedding_metadata SET string_value = '{}' WHERE key = 'chroma:document' AND id = "
            "(SELECT id FROM embeddings WHERE embedding_id = 'wide-loads')"
        )
    assert "'wide-loads'" in refused(folder, "memory-corrupt").message


def test_a_newer_schema(folder: Path, store: MemoryStore) -> None:
    store.close()
    client = chromadb.PersistentClient(str(folder))
    collection = client.get_collection("htam-experiences", embedding_function=None)
    collection.modify(metadata={**collection.metadata, "htam_schema": SCHEMA_VERSION + 1})
    client.close()
    assert f"version {SCHEMA_VERSION + 1}" in refused(folder, "memory-schema").message


def test_records_of_another_embedder_get_new_vectors_and_the_notes_say_so(folder: Path, store: MemoryStore) -> None:
    other = HashingEmbedder(64)
    store.add_experience(experience("run:1:0", "wide", "wide-loads"))
    before = store.fingerprint
    store.close()
    with MemoryStore.open(folder, seed=SEED, embedder=other) as again:
        assert again.fingerprint == before
        assert len(again.notes) == 3
        assert other.id in again.notes[0]
        assert {vector.shape for vector in again.texts.vectors.values()} == {(64,)}
        assert len(retrieve_strategies(state(), "wide", again)) == 2
    with MemoryStore.open(folder, seed=SEED, embedder=other) as last:
        assert last.notes == []
        assert last.fingerprint == before


def test_vectors_of_two_embedders_are_never_mixed(folder: Path, store: MemoryStore) -> None:
    """Another program gave the records new vectors while this store was open."""
    MemoryStore.open(folder, seed=SEED, embedder=HashingEmbedder(64)).close()
    with pytest.raises(StoreError) as caught:
        store.add_strategies([strategy("mine", "wide")])
    assert caught.value.code == "memory-embedder"
    assert "mine" not in store.strategies


@pytest.mark.parametrize("whole", [True, False])
def test_new_vectors_that_were_cut_short(folder: Path, store: MemoryStore, whole: bool) -> None:
    """Killed between removing the old collection and naming the new one, and while the new one was being filled."""
    store.add_experience(experience("run:1:0", "wide", "wide-loads"))
    before = store.fingerprint
    store.close()
    client = chromadb.PersistentClient(str(folder))
    old = client.get_collection("htam-strategies", embedding_function=None)
    if whole:
        old.modify(name="htam-anew-strategies", metadata={**old.metadata, "htam_whole": True})
    else:
        client.create_collection("htam-anew-strategies", metadata=old.metadata, embedding_function=None)
    client.close()
    embedder = HashingEmbedder() if whole else HashingEmbedder(64)
    with MemoryStore.open(folder, seed=SEED, embedder=embedder) as again:
        assert again.fingerprint == before


def test_a_changed_document_is_found_by_its_digest(folder: Path, store: MemoryStore) -> None:
    store.close()
    with closing(sqlite3.connect(folder / "chroma.sqlite3")) as database, database:
        database.execute(
            "UPDATE embedding_metadata SET string_value = replace(string_value, 'Do it well', 'Do it badly') "
            "WHERE key = 'chroma:document' AND id = (SELECT id FROM embeddings WHERE embedding_id = 'wide-loads')"
        )
    assert "'wide-loads'" in refused(folder, "memory-corrupt").message


def test_a_record_of_a_newer_htam_is_named_and_not_called_damaged(folder: Path, store: MemoryStore) -> None:
    store.close()
    with closing(sqlite3.connect(folder / "chroma.sqlite3")) as database, database:
        database.execute(
            'UPDATE embedding_metadata SET string_value = replace(string_value, \'"how"\', \'"novel":1,"how"\') '
            "WHERE key = 'chroma:document' AND id = (SELECT id FROM embeddings WHERE embedding_id = 'wide-loads')"
        )
    message = refused(folder, "memory-schema").message
    assert "'wide-loads'" in message
    assert "another version" in message


def test_a_folder_of_something_else_and_a_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("Do not mix.")
    assert "thesis.txt" in refused(folder, "memory-foreign").message
    refused(folder / "thesis.txt", "memory-folder")
    refused(folder / "thesis.txt" / "below", "memory-unwritable")


def test_no_place_at_all() -> None:
    with pytest.raises(StoreError, match="No place"):
        MemoryStore.open(None, None, seed=SEED)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming a user without rights needs root")
def test_a_folder_that_this_user_may_not_write(folder: Path, store: MemoryStore) -> None:
    """As root every folder is writable, so a child gives up its rights and asks."""
    store.close()
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom htam_agent.errors import StoreError\n"
        "from htam_agent.memory.connection import prepare\nos.setuid(65534)\n"
        "try:\n    prepare(Path(sys.argv[1]))\nexcept StoreError as error:\n    print(error.code, error)\n"
    )
    for parent in [folder, *folder.parents][:5]:
        parent.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("memory-unwritable")
    assert "the setting `memory`" in done.stdout


def test_two_stores_of_one_process_share_the_folder(folder: Path, store: MemoryStore) -> None:
    with MemoryStore.open(folder, seed=SEED) as second:
        second.add_experience(experience("run:1:0", "wide", "wide-loads"))
        store.add_experience(experience("run:2:0", "wide", "wide-loads"))
    store.close()
    store.close()
    with MemoryStore.open(folder, seed=SEED) as third:
        assert [record.id for record in third.experiences] == ["run:1:0", "run:2:0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_a_sentence_with_its_remedy(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], check=False)
    if done.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(StoreError) as caught:
            MemoryStore.open(place / "memory")
        assert caught.value.remedy
        assert str(place) in caught.value.message
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
