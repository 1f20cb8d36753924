"""Which torch is installed: pip itself decides, over package folders and indexes made here."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch_choice
from torch_choice import Offer, choose_torch, is_cpu_build

CUDA_NEEDS = ("nvidia-cublas==13.1.0; platform_system == 'Linux'", "filelock")


def make_wheel(folder: Path, version: str, needs: tuple[str, ...] = ()) -> None:
    """A package named torch with nothing in it."""
    folder.mkdir(parents=True, exist_ok=True)
    information = f"torch-{version}.dist-info"
    texts = {
        "torch/__init__.py": "",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {need}\n" for need in needs),
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for name, text in texts.items()
    ]
    texts[f"{information}/RECORD"] = "\n".join([*record, f"{information}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which a real HTTP server on loopback shows it; pip knows only its `usual`."""
    root = tmp_path / "site"
    for name in ("usual", "cpu", "empty"):
        (root / name / "torch").mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{address}/usual")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield root, address
    server.shutdown()
    server.server_close()
    thread.join()


def choose(address: str, index: str = "cpu", driver: bool = False) -> torch_choice.Choice:
    return choose_torch(sys.executable, driver, f"{address}/{index}")


def test_the_usual_index_is_taken_when_it_has_the_cpu_build(site: tuple[Path, str]) -> None:
    root, address = site
    make_wheel(root / "usual" / "torch", "2.13.0+cpu")
    make_wheel(root / "usual" / "torch", "2.13.0", CUDA_NEEDS)
    choice = choose(address, "empty")
    assert choice.arguments == ["torch==2.13.0"]
    assert "2.13.0+cpu" in choice.sentence


def test_a_folder_of_wheels_is_taken_when_it_has_the_cpu_build(
    site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, address = site
    make_wheel(root / "usual" / "torch", "2.13.0", CUDA_NEEDS)
    make_wheel(tmp_path / "wheels", "2.13.0+cpu")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert choose(address, "empty").arguments == ["torch==2.13.0"]


def test_a_build_that_needs_no_cuda_libraries_is_a_cpu_build(site: tuple[Path, str]) -> None:
    root, address = site
    make_wheel(root / "usual" / "torch", "2.13.0", ("filelock", "triton>=3; extra == 'all'"))
    assert choose(address, "empty").arguments == ["torch==2.13.0"]


def test_the_cpu_index_is_taken_when_the_usual_one_has_only_the_cuda_build(site: tuple[Path, str]) -> None:
    root, address = site
    make_wheel(root / "usual" / "torch", "2.13.0", CUDA_NEEDS)
    make_wheel(root / "cpu" / "torch", "2.13.0+cpu")
    choice = choose(address)
    assert choice.arguments == ["torch==2.13.0", "--index-url", f"{address}/cpu"]
    assert f"{address}/cpu" in choice.sentence


def test_the_cuda_build_is_taken_with_its_size_when_there_is_nothing_else(site: tuple[Path, str]) -> None:
    root, address = site
    make_wheel(root / "usual" / "torch", "2.13.0", CUDA_NEEDS)
    choice = choose(address, "empty")
    assert choice.arguments == ["torch==2.13.0"]
    assert "cannot be had" in choice.sentence
    assert "GB" in choice.sentence
    assert "TORCH_INDEX" in choice.sentence


def test_a_cpu_index_that_offers_a_cuda_build_is_not_believed(site: tuple[Path, str]) -> None:
    root, address = site
    make_wheel(root / "usual" / "torch", "2.13.0", CUDA_NEEDS)
    make_wheel(root / "cpu" / "torch", "2.13.0+cu130")
    choice = choose(address)
    assert choice.arguments == ["torch==2.13.0"]
    assert "2.13.0+cu130, a CUDA build" in choice.sentence


def test_nothing_is_installed_when_torch_is_nowhere(site: tuple[Path, str]) -> None:
    _, address = site
    choice = choose(address, "empty")
    assert choice.arguments == []
    assert "torch==2.13.0 cannot be had" in choice.sentence


def test_a_driver_means_a_plain_install(site: tuple[Path, str]) -> None:
    assert choose(site[1], driver=True).arguments == ["torch==2.13.0"]


@pytest.mark.parametrize(
    ("version", "needs", "expected"),
    [
        ("2.13.0+cpu", CUDA_NEEDS, True),
        ("2.13.0+cu130", (), False),
        ("2.13.0", ("cuda-toolkit[cublas]==13.0.3; platform_system == 'Linux'",), False),
        ("2.13.0", ("nvidia-nccl-cu13; platform_machine == 'another'",), True),
        ("2.13.0", ("sympy",), True),
        ("", (), False),
    ],
)
def test_cpu_builds_are_told_by_version_and_needs(version: str, needs: tuple[str, ...], expected: bool) -> None:
    assert is_cpu_build(Offer(version, needs)) is expected


def test_the_size_counts_every_wheel(site: tuple[Path, str]) -> None:
    root, address = site
    make_wheel(root / "usual" / "torch", "2.13.0")
    wheel = root / "usual" / "torch" / "torch-2.13.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes())
    offer = torch_choice.ask_pip(sys.executable, ["torch==2.13.0"])
    assert offer.addresses == (f"{address}/usual/torch/{wheel.name}",)
    assert "GB to download with NVIDIA's libraries" in torch_choice.describe_size(sys.executable, offer)
