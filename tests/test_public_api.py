"""The public surface is eight names and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

import htam_agent

NAMES = ["HtamError", "Result", "Task", "aoptimize", "as_node", "build_graph", "evaluate", "optimize"]


def test_the_public_names_are_those_of_the_contract() -> None:
    assert sorted(htam_agent.__all__) == NAMES
    assert dir(htam_agent) == NAMES


def test_every_public_name_resolves_in_a_fresh_process() -> None:
    code = "import htam_agent\nfor name in htam_agent.__all__: assert getattr(htam_agent, name).__doc__, name"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="secret"):
        htam_agent.secret  # noqa: B018
