"""THREAT_MODEL.md speaks of every known cheat and every layer, and of files that exist."""

from __future__ import annotations

import re
from pathlib import Path

from htam_agent.evaluation.confinement import LAYERS
from tests.cheats.table import EXEMPT, IDS

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "THREAT_MODEL.md").read_text(encoding="utf-8")
LINES = [line for line in TEXT.splitlines() if re.match(r"\| [TSFHL]\d", line)]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]


def test_every_known_cheat_has_a_row() -> None:
    assert [row[0] for row in ROWS] == sorted({*IDS, *EXEMPT}, key=lambda name: ("TSFHL".index(name[0]), int(name[1:])))


def test_the_files_that_it_names_exist() -> None:
    for row in ROWS:
        for file in row[4].split(", "):
            assert (ROOT / "htam_agent" / file).is_file(), file
        assert row[5] == "a rule: exempt" if row[0] in EXEMPT else (ROOT / row[5]).is_file(), row
    for file in re.findall(r"tests/[\w/]+\.py", TEXT):
        assert (ROOT / file).is_file(), file


def test_every_layer_is_explained() -> None:
    table = TEXT[TEXT.index("### Layers") : TEXT.index("## What is not defended")]
    for layer in LAYERS:
        assert layer in table
