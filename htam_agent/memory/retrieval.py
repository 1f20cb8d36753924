"""Local retrieval: the strategies of one direction that apply here, the most promising first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from htam_agent.memory.index import Evidence, Memory
from htam_agent.memory.model import Preconditions, ScoredStrategy, SelectionState, Strategy

PRIOR_COUNTS = 2.0

SPECIFIC_SHARE = 0.03
"""Added for each precondition that holds, for at most three: advice made for this case beats general advice."""

TEXT_SHARE = 0.1
"""Times the likeness of the strategy's text to the state's words."""


def retrieve_strategies(state: SelectionState, direction: str, memory: Memory, limit: int = 5) -> list[ScoredStrategy]:
    """The at most `limit` best strategies of `direction` that apply and were not tried, best first.

    The score is the expected share of the remaining gap, as for directions (attention.py): the strategy's own prior
    plus how well the advice fits (specific preconditions that hold, and likeness of words), worth PRIOR_COUNTS
    observations, averaged with the measured shares of this strategy, each weighted by the similarity of its state. A
    strategy that was never measured is therefore ranked by fit, and one that was measured often by its record. Ties go
    by id.
    """
    found = [s for s in memory.strategies.values() if s.direction == direction and applicable(s, state) is None]
    likeness = _likeness(state, found, memory)
    records = _records(state, memory.evidence, {strategy.id for strategy in found})
    scored = [_score(strategy, likeness[strategy.id], records.get(strategy.id, [])) for strategy in found]
    return sorted(scored, key=lambda each: (-each.score, each.strategy.id))[:limit]


def applicable(strategy: Strategy, state: SelectionState) -> str | None:
    """None when the strategy may be used in this state, else what stands against it, in words.

    Where no plan is known (a chat model's kernel, or none yet), preconditions on the plan are left to the coder, who
    reads them; every other precondition must be known to hold.
    """
    return next(_objections(strategy, state), None)


def _objections(strategy: Strategy, state: SelectionState) -> Iterator[str]:
    if strategy.backend != state.backend:
        yield f"it is for the backend {strategy.backend}, not {state.backend}"
    if strategy.id in state.tried:
        yield "it was tried on the best kernel so far"
    if strategy.id in state.plan_strategies:
        yield "it is part of the best kernel already"
    yield from _words_objections(strategy.preconditions, state)
    yield from _range_objections(strategy.preconditions, state)


def _words_objections(needs: Preconditions, state: SelectionState) -> Iterator[str]:
    features = state.features
    if needs.dtypes is not None and features.dtype not in needs.dtypes:
        yield f"the dtype is {features.dtype}, needed is {_any_of(needs.dtypes)}"
    if needs.operator_classes is not None and features.operator_class not in needs.operator_classes:
        yield f"the operator is a {features.operator_class}, needed is {_any_of(needs.operator_classes)}"
    if needs.operators_any is not None and not set(needs.operators_any) & set(state.operators):
        yield f"no {_any_of(needs.operators_any)} occurs"
    if needs.plan_mapping is not None and state.plan_mapping not in (None, *needs.plan_mapping):
        yield f"the kernel's mapping is {state.plan_mapping}, needed is {_any_of(needs.plan_mapping)}"
    if needs.plan_staging is not None and state.plan_staging not in (None, *needs.plan_staging):
        yield f"the kernel's staging is {state.plan_staging}, needed is {_any_of(needs.plan_staging)}"


def _range_objections(needs: Preconditions, state: SelectionState) -> Iterator[str]:
    features = state.features
    ranges: list[tuple[str, float | None, float | None, float | None]] = [
        ("the number of reductions", features.reductions, needs.reductions_min, needs.reductions_max),
        ("the number of rows", features.rows, needs.rows_min, needs.rows_max),
        ("the number of columns", features.columns, needs.columns_min, needs.columns_max),
        ("a row's size in bytes", features.row_bytes, needs.row_bytes_min, needs.row_bytes_max),
        ("the number of transcendentals", features.transcendentals, needs.transcendentals_min, None),
        ("the compute capability", state.compute_capability, needs.compute_capability_min, None),
    ]
    for name, value, low, high in ranges:
        if low is not None and (value is None or value < low):
            yield f"{name} is {'unknown' if value is None else value}, at least {low} is needed"
        if high is not None and (value is None or value > high):
            yield f"{name} is {'unknown' if value is None else value}, at most {high} is allowed"
    if needs.columns_multiple_of is not None and features.columns % needs.columns_multiple_of:
        yield f"{features.columns} columns are no multiple of {needs.columns_multiple_of}"


def _any_of(words: Sequence[str]) -> str:
    return " or ".join(words)


def _likeness(state: SelectionState, strategies: list[Strategy], memory: Memory) -> dict[str, float]:
    """Cosine of each strategy's text with the state's words, not below 0."""
    operators = [name.removeprefix("aten.") for name in state.operators]
    words = [state.features.operator_class, state.features.dtype, state.bottleneck, *operators]
    vectors = [memory.texts.vectors[strategy.id] for strategy in strategies]
    if not vectors:
        return {}
    query = memory.texts.embedder.embed([" ".join(words)])[0]
    cosines = np.stack(vectors).astype(np.float64) @ query.astype(np.float64)
    return {strategy.id: max(0.0, float(cosine)) for strategy, cosine in zip(strategies, cosines, strict=True)}


def _records(state: SelectionState, evidence: Evidence, wanted: set[str]) -> dict[str, list[tuple[float, float]]]:
    """(weight, share) of each experience of a wanted strategy that counts here."""
    weights = evidence.weights(state)
    records: dict[str, list[tuple[float, float]]] = {}
    for position in np.flatnonzero(weights).tolist():
        strategy = evidence.records[position].strategy
        if strategy in wanted:
            records.setdefault(strategy, []).append((float(weights[position]), evidence.shares[position]))
    return records


def _score(strategy: Strategy, likeness: float, records: list[tuple[float, float]]) -> ScoredStrategy:
    holding = len(strategy.preconditions.model_dump(exclude_none=True))
    prior = strategy.prior + SPECIFIC_SHARE * min(holding, 3) + TEXT_SHARE * likeness
    counts = math.fsum(weight for weight, _ in records)
    total = math.fsum(weight * share for weight, share in records)
    score = (PRIOR_COUNTS * prior + total) / (PRIOR_COUNTS + counts)
    why = f"{score:.2f} of the remaining gap expected: {prior:.2f} by fit ({holding} preconditions hold)"
    if records:
        why += f", measured {total / counts:+.2f} on average in {len(records)} steps like this ({counts:.1f} counts)"
    return ScoredStrategy(strategy=strategy, score=score, why=why + ".")
