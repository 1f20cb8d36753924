"""A build answers for itself: what it names is looked at before anything is read from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.evaluation.compiling import within
from htam_agent.verdict import CompileResult


def test_a_binary_in_the_builds_own_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "kernels.so").write_bytes(b"\x7fELF")
    result = CompileResult(ok=True, backend="cpp", binary=str(tmp_path / "kernels.so"))
    assert within(result, tmp_path) == result


@pytest.mark.parametrize("name", ["link.so", "folder", "../outside.so", "folder/../../outside.so", "missing.so"])
def test_any_other_binary_is_refused(tmp_path: Path, name: str) -> None:
    own = tmp_path / "build"
    (own / "folder").mkdir(parents=True)
    (tmp_path / "outside.so").write_text("secret")
    (own / "link.so").symlink_to(tmp_path / "outside.so")
    refused = within(CompileResult(ok=True, backend="cpp", binary=str(own / name)), own)
    assert (refused.ok, refused.binary) == (False, "")
    assert "no plain file in its own folder" in refused.reason
