"""What every test gets: repeatable examples, and no settings or tracing from the developer's own environment."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Repeatable by default: a failure in one run fails in the next. HYPOTHESIS_PROFILE=explore looks for new examples.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

FOREIGN = ("HTAM_", "LANGSMITH_", "LANGCHAIN_", "OPENAI_")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the developer's settings, keys and tracing out of the environment of a test and of its child processes."""
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            monkeypatch.delenv(name)
