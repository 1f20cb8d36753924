"""Ceilings: measured for real once, kept on disk, measured again when the file is broken or the device another."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.backends.ceilings import CeilingStore, plausible
from htam_agent.backends.cpp import CppBackend
from htam_agent.verdict import CacheCeiling, Ceilings, DeviceFacts

FACTS = DeviceFacts(backend="cpp", name="a processor", architecture="x86_64", threads=2)
FIGURES = Ceilings(copy_bytes_per_second=2e10, fp32_operations_per_second=1e11, launch_seconds=1e-6)


class Measurement:
    """Counts how often it was taken."""

    def __init__(self, figures: Ceilings = FIGURES) -> None:
        self.figures = figures
        self.taken = 0

    def __call__(self) -> Ceilings:
        self.taken += 1
        return self.figures


def test_the_processor_is_measured(tmp_path: Path) -> None:
    backend = CppBackend(ceilings=CeilingStore(tmp_path))
    found = backend.ceilings()
    assert plausible(found)
    assert 1e8 < found.copy_bytes_per_second < 1e13
    assert 1e8 < found.fp32_operations_per_second < 1e14
    assert 0 < found.launch_seconds < 0.1
    assert CppBackend(ceilings=CeilingStore(tmp_path)).ceilings() == found


def test_it_is_measured_once_and_read_afterwards(tmp_path: Path) -> None:
    measure = Measurement()
    assert CeilingStore(tmp_path).get(FACTS, measure) == FIGURES
    assert CeilingStore(tmp_path).get(FACTS, measure) == FIGURES
    assert measure.taken == 1


@pytest.mark.parametrize("change", [{"driver": "2"}, {"threads": 4}, {"name": "another"}, {"compiler": "g++ 14"}])
def test_another_device_or_version_is_measured_anew(tmp_path: Path, change: dict[str, object]) -> None:
    measure = Measurement()
    CeilingStore(tmp_path).get(FACTS, measure)
    CeilingStore(tmp_path).get(FACTS.model_copy(update=change), measure)
    assert measure.taken == 2


@pytest.mark.parametrize("content", ["", "{", '{"facts": 1}', "null"])
def test_a_broken_file_is_measured_again_and_mended(tmp_path: Path, content: str) -> None:
    measure = Measurement()
    CeilingStore(tmp_path).get(FACTS, measure)
    (file,) = tmp_path.glob("*.json")
    file.write_text(content)
    CeilingStore(tmp_path).get(FACTS, measure)
    assert measure.taken == 2
    CeilingStore(tmp_path).get(FACTS, measure)
    assert measure.taken == 2


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), 1e30])
def test_figures_that_make_no_sense_are_not_believed(tmp_path: Path, rate: float) -> None:
    CeilingStore(tmp_path).get(FACTS, Measurement(FIGURES.model_copy(update={"copy_bytes_per_second": rate})))
    measure = Measurement()
    assert CeilingStore(tmp_path).get(FACTS, measure) == FIGURES
    assert measure.taken == 1


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    measure = Measurement()
    store = CeilingStore(tmp_path / "file")
    assert store.get(FACTS, measure) == store.get(FACTS, measure) == FIGURES
    assert measure.taken == 1


def test_small_working_sets_are_held_against_the_cache() -> None:
    caches = [
        CacheCeiling(bytes=1 << 20, copy_bytes_per_second=2e11),
        CacheCeiling(bytes=1 << 25, copy_bytes_per_second=8e10),
    ]
    ceilings = FIGURES.model_copy(update={"caches": caches})
    assert ceilings.copy_rate(1000) == 2e11
    assert ceilings.copy_rate(1 << 22) == 8e10
    assert ceilings.copy_rate(1 << 30) == 2e10


@pytest.mark.parametrize("field", ["tf32_operations_per_second", "bf16_operations_per_second", "dram_bytes_per_second"])
def test_a_rate_that_is_known_must_make_sense(field: str) -> None:
    assert plausible(FIGURES.model_copy(update={field: 4e14}))
    assert plausible(FIGURES.model_copy(update={field: 0.0})), "unknown"
    for value in (float("nan"), float("inf"), -1.0, 1e30):
        assert not plausible(FIGURES.model_copy(update={field: value}))


def test_products_have_the_rate_of_their_precision() -> None:
    known = FIGURES.model_copy(update={"tf32_operations_per_second": 4e14, "bf16_operations_per_second": 7e14})
    assert known.product_rate("ieee") == FIGURES.fp32_operations_per_second
    assert known.product_rate("tf32") == 4e14
    assert known.product_rate("fp16") == known.product_rate("bf16") == 7e14
    assert FIGURES.product_rate("tf32") == 0.0
