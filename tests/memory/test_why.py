"""`htam memory why`: what would be chosen in a run's first state, with its terms and what is masked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from htam_agent.cli.memory import memory_app
from htam_agent.coding.template import TemplateCoder
from htam_agent.errors import StoreError
from htam_agent.graph.requests import selection_state
from htam_agent.graph.state import Draft
from htam_agent.memory.seeding import load_seed
from htam_agent.memory.store import MemoryStore
from htam_agent.memory.why import MemoryWhy, explain, first_state, in_words
from htam_agent.tracing import features_of, trace_model
from htam_agent.verdict import DeviceFacts
from tests.support.memory import SEED, experience, state

TASK = Path(__file__).parents[1] / "tasks" / "row_softmax.py"


def test_the_answer_has_terms_experiences_and_reasons(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "memory", seed=SEED) as store:
        store.add_experiences([experience(f"run:{i}:0:0", "reuse", "keep-row", 0.9) for i in range(8)])
        found = explain(state(seed=1, steps_left=1), store)
        assert found.chosen == "reuse"
        assert [one.id for one in found.strategies] == ["keep-row"]
        assert found.refused == {}
        first = found.directions[0]
        assert first.terms
        assert len(first.experiences) > 0
        weighing = [term for term in first.terms if term.counts]
        mean = math.fsum(term.counts * term.share for term in weighing) / math.fsum(term.counts for term in weighing)
        added = math.fsum(term.share for term in first.terms if not term.counts)
        assert first.score == pytest.approx(mean + added, abs=1e-6)
        none = explain(state(seed=1, backend="cuda", tried=("keep-row-on-gpu",)), store)
        assert none.chosen is None
        assert set(none.masked) == {"wide", "reuse"}
        text = "\n".join(in_words(none))
        assert "No direction" in text
        assert "keep-row-on-gpu: it was tried" in text


def test_it_is_the_state_of_a_runs_first_step() -> None:
    device = DeviceFacts(backend="cuda", name="A GPU", architecture="sm_90a")
    operator = trace_model(nn.Softmax(-1), [torch.randn(4, 64)], "Softmax")
    coder = TemplateCoder({one.id: one for one in load_seed().strategies})
    options = SimpleNamespace(backend="cuda", steps=6, seed=5, memory_mode="full")
    run = selection_state(
        {"draft": Draft(step=1), "task": SimpleNamespace(id="softmax-1"), "run": "/somewhere/run"},
        SimpleNamespace(options=options, coder=coder),
        SimpleNamespace(
            operator=operator,
            features=features_of(operator),
            bench=SimpleNamespace(device=device),
            folder=SimpleNamespace(key="run-0"),
            seed=5,
        ),
    )
    plan = coder.initial_plan(operator, "cuda")
    mine = first_state("softmax-1", operator, device, plan, 6, 5, "full")
    assert mine == run.model_copy(update={"run": ""})


@pytest.mark.slow
def test_the_command_traces_the_task_in_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    MemoryStore.open(tmp_path / "memory").close()
    words = ["why", str(TASK), "--backend", "cpp", "--memory", str(tmp_path / "memory"), "--json"]
    answer = CliRunner().invoke(memory_app, words, catch_exceptions=False)
    found = MemoryWhy.model_validate(json.loads(answer.stdout.splitlines()[-1]))
    assert found.features.operator_class == "softmax"
    assert found.chosen == found.directions[0].direction
    assert found.strategies
    assert "operator-fusion" in found.masked
    with pytest.raises(StoreError, match="no memory at"):
        CliRunner().invoke(memory_app, [*words[:-3], "--memory", "nowhere"], catch_exceptions=False)
