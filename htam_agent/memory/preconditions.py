"""Whether a strategy may be used in a state, and what stands against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from htam_agent.memory.model import Preconditions, SelectionState, Strategy


def applicable(strategy: Strategy, state: SelectionState) -> str | None:
    """None when the strategy may be used in this state, else what stands against it, in words.

    Where no plan is known (a chat model's kernel, or none yet), preconditions on the plan are left to the coder, who
    reads them; every other precondition must be known to hold.
    """
    return next(_objections(strategy, state), None)


def preconditions_of(strategy: Strategy) -> int:
    """Number of preconditions that the strategy states."""
    needs = strategy.preconditions
    return sum(1 for name in type(needs).model_fields if getattr(needs, name) is not None)


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
    if needs.architectures is not None and _architecture(state) not in needs.architectures:
        yield f"the architecture is {_architecture(state) or 'unknown'}, needed is {_any_of(needs.architectures)}"


def _range_objections(needs: Preconditions, state: SelectionState) -> Iterator[str]:
    features, threads = state.features, state.device.threads or None if state.device is not None else None
    ranges: tuple[tuple[str, int | None, int | None, int | None], ...] = (
        ("the number of reductions", features.reductions, needs.reductions_min, needs.reductions_max),
        ("the number of rows", features.rows, needs.rows_min, needs.rows_max),
        ("the number of columns", features.columns, needs.columns_min, needs.columns_max),
        ("a row's size in bytes", features.row_bytes, needs.row_bytes_min, needs.row_bytes_max),
        ("the number of transcendentals", features.transcendentals, needs.transcendentals_min, None),
        (
            "the compute capability",
            state.compute_capability,
            needs.compute_capability_min,
            needs.compute_capability_max,
        ),
        ("the device's number of threads", threads, needs.threads_min, needs.threads_max),
    )
    for name, value, low, high in ranges:
        if low is not None and (value is None or value < low):
            yield f"{name} is {'unknown' if value is None else value}, at least {low} is needed"
        if high is not None and (value is None or value > high):
            yield f"{name} is {'unknown' if value is None else value}, at most {high} is allowed"
    if needs.columns_multiple_of is not None and features.columns % needs.columns_multiple_of:
        yield f"{features.columns} columns are no multiple of {needs.columns_multiple_of}"


def _architecture(state: SelectionState) -> str:
    if state.device is not None:
        return state.device.architecture
    return f"sm_{state.compute_capability}" if state.compute_capability is not None else ""


def _any_of(words: Sequence[str]) -> str:
    return " or ".join(words)
