"""Opponents that cannot be timed: the next best stands in, and the speedup's reason says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from htam_agent.evaluation.baselines import ranked_variants
from htam_agent.evaluation.bench import Bench
from htam_agent.evaluation.judge import Reference
from htam_agent.evaluation.messages import Ask, Timed, Told
from htam_agent.verdict import RunResult, Times
from tests.evaluation.samples import candidate


def test_the_fastest_opponent_comes_first() -> None:
    assert ranked_variants(Times(eager=2.0, eager_tf32=1.0, compile=3.0)) == ["eager_tf32", "eager", "compile"]
    assert ranked_variants(Times()) == ["eager"]


class WithoutCompile(Reference):
    """A reference whose torch.compile gives up, as the worker says it."""

    def ask(self, question: Ask, seconds: float | None = None) -> Told:
        timed = question.warm or question.block
        if timed is not None and timed.variant == "compile":
            return Told(timed=Timed(reason="torch.compile failed: RuntimeError: no"))
        return super().ask(question, seconds)


def test_an_opponent_that_fails_later_is_no_fault_of_the_candidate(
    bench: Bench, judge: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench._opened()
    reference = WithoutCompile(session.reference.worker, session.reference.seconds)
    monkeypatch.setattr(bench, "_session", replace(session, reference=reference))
    monkeypatch.setattr(bench, "_baselines", None)
    monkeypatch.setattr(bench, "baseline_reason", "")
    bench.use_baselines(Times(eager=0.2, compile=0.1, best=0.1))
    result = judge(candidate(), timing=True)
    assert result.verdict == "correct", result
    assert "compile, the fastest opponent before, could not be timed again: torch.compile failed" in (
        result.speedup.reason
    )
    assert result.speedup.eager == pytest.approx(result.speedup.best)
