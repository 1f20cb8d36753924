"""A strategy is tried before it enters a memory: rendered for an example operator, built, and verified if it can run.

The example is loaded and the kernel runs in the evaluator's confined processes. A strategy that no example fits is let
in with a note: nothing is known against it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from htam_agent.errors import BackendUnavailable, StoreError
from htam_agent.memory.trial_operators import Example, examples_for
from htam_agent.words import Backend

if TYPE_CHECKING:
    from htam_agent.coding.base import BestSoFar, Code, CodeRequest
    from htam_agent.coding.template import TemplateCoder
    from htam_agent.evaluation.bench import Bench
    from htam_agent.memory.model import Direction, Strategy
    from htam_agent.memory.store import MemoryStore
    from htam_agent.settings import Settings
    from htam_agent.verdict import CompileResult

EXAMPLES = 3
"""Operators that are tried at most for one strategy, while its block declines them."""

OPEN = 2
"""Examples that are kept loaded: each holds two processes and its tensors."""

UNRENDERABLE = "the block of strategy"
"""How a RenderError begins when the text of a block is at fault, and not its fit."""


def add_tried(strategies: Iterable[Strategy], store: MemoryStore, settings: Settings) -> None:
    """Stores a user's strategies; those that are new or changed are tried first, and `store.notes` says what was not.

    Raises StoreError: see check_slots, try_strategies and MemoryStore.add_strategies. Nothing is then stored.
    """
    new = [strategy for strategy in strategies if store.strategies.get(strategy.id) != strategy]
    for strategy in new:
        check_slots(strategy)
        store.direction(strategy.direction)
    store.notes += try_strategies(new, store, settings)
    store.add_strategies(new)


def check_slots(strategy: Strategy) -> None:
    """A block in a slot that no skeleton has would be passed over for ever. Raises StoreError that names it."""
    from htam_agent.coding.cpp import SLOTS as CPP_SLOTS
    from htam_agent.coding.cuda import SLOTS as CUDA_SLOTS

    known = CPP_SLOTS if strategy.backend == "cpp" else CUDA_SLOTS
    unknown = sorted({*strategy.more_blocks, *([strategy.slot] if strategy.slot else [])} - set(known))
    if unknown:
        raise StoreError(
            f"The strategy {strategy.id!r} fills the slot {unknown[0]!r}, which the {strategy.backend} kernels lack.",
            f"Choose one of {', '.join(known)}.",
            "strategy-file",
        )


def try_strategies(strategies: Sequence[Strategy], store: MemoryStore, settings: Settings) -> list[str]:
    """Tries each strategy; what could not be tried is said in the notes that come back.

    Raises StoreError with the code "memory-strategy" naming the first one whose block does not render, whose kernel
    does not build, or is not correct.
    """
    own = [one for one in strategies if one.slot or one.more_blocks or one.edit.model_dump(exclude_none=True)]
    if not own:
        return []
    with Trial({**store.strategies, **{one.id: one for one in strategies}}, store.directions, settings) as trial:
        return [note for one in own if (note := trial.outcome(one))]


class Trial:
    """Benches on the examples, opened when first needed, and a template coder that knows every strategy. A context
    manager, since the benches hold processes."""

    def __init__(
        self, strategies: Mapping[str, Strategy], directions: Mapping[str, Direction], settings: Settings
    ) -> None:
        from htam_agent.backends.registry import backend
        from htam_agent.coding.template import TemplateCoder

        self._strategies, self._directions, self._settings = strategies, directions, settings
        self._coder: TemplateCoder = TemplateCoder(strategies)
        self._gpu = backend("cuda").available().ok
        self._benches: dict[tuple[Backend, Example], Bench] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="htam-trial-")))
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.close()

    def outcome(self, strategy: Strategy) -> str:
        """A note, or empty. Raises StoreError, see try_strategies."""
        declined: list[str] = []
        for example in examples_for(strategy)[:EXAMPLES]:
            try:
                bench = self._bench(strategy.backend, example)
            except BackendUnavailable as error:
                return f"The strategy {strategy.id!r} was not tried: {error.message}"
            code = self._code(strategy, bench)
            if code.source:
                return self._judged(strategy, example, bench, code)
            if UNRENDERABLE in code.refusal:
                raise _wrong(strategy, "cannot be rendered", code.refusal)
            declined.append(code.refusal)
        reason = declined[0] if declined else "no example operator fits its preconditions"
        return f"The strategy {strategy.id!r} was not tried: {reason}."

    def _bench(self, backend: Backend, example: Example) -> Bench:
        """An open bench on the example; of the backend cpp where there is no GPU: a trace is the same."""
        place: Backend = backend if backend == "cpp" or self._gpu else "cpp"
        found = self._benches.pop((place, example), None)
        if found is None:
            if len(self._benches) == OPEN:
                self._benches.pop(next(iter(self._benches))).close()
            found = self._opened(place, example)
        self._benches[place, example] = found  # the one that was used last is closed last
        return found

    def _opened(self, place: Backend, example: Example) -> Bench:
        from htam_agent.evaluation.bench import Bench, Limits
        from htam_agent.task import Task

        folder = Path(tempfile.mkdtemp(dir=self._folder))
        (folder / "example.py").write_text(example.source, encoding="utf-8")
        bench = Bench(
            Task.parse(str(folder / "example.py")),
            backend=place,
            precision=example.precision,
            folder=folder / "bench",
            limits=Limits(
                build_seconds=self._settings.build_seconds,
                run_seconds=self._settings.run_seconds,
                total_seconds=self._settings.total_seconds,
            ),
        )
        self._closing.callback(bench.close)
        bench.open()
        return bench

    def _code(self, strategy: Strategy, bench: Bench) -> Code:
        """The strategy's kernel from the plain plan, or after another strategy that makes the plan it needs."""
        code = self._coder.generate(self._request(strategy, bench, None))
        refusal = code
        for before in self._preparations(strategy):
            if code.source or UNRENDERABLE in code.refusal:
                return code
            first = self._coder.generate(self._request(before, bench, None))
            if first.source:
                code = self._coder.generate(self._request(strategy, bench, _best(first)))
        return code if code.source or UNRENDERABLE in code.refusal else refusal

    def _preparations(self, strategy: Strategy) -> Iterator[Strategy]:
        needs = strategy.preconditions
        for other in self._strategies.values():
            fits = (other.edit.mapping and other.edit.mapping in (needs.plan_mapping or ())) or (
                other.edit.staging and other.edit.staging in (needs.plan_staging or ())
            )
            if fits and other.backend == strategy.backend and other.id != strategy.id:
                yield other

    def _request(self, strategy: Strategy, bench: Bench, best: BestSoFar | None) -> CodeRequest:
        from htam_agent.coding.base import CodeRequest
        from htam_agent.memory.model import ScoredStrategy

        return CodeRequest(
            task_source=bench.task.text,
            operator=bench.operator,
            backend=strategy.backend,
            device=bench.device,
            precision=bench.precision,
            policy=bench.policy,
            direction=self._directions[strategy.direction],
            strategies=[ScoredStrategy(strategy=strategy, score=strategy.prior, why="It is tried.")],
            best=best,
        )

    def _judged(self, strategy: Strategy, example: Example, bench: Bench, code: Code) -> str:
        """Builds the kernel, and runs it where this machine can."""
        kernel = self._folder / "kernel.py"
        kernel.write_text(code.source, encoding="utf-8")
        compiled = self._compiled(strategy, bench, kernel)
        if compiled is None:
            return f"The strategy {strategy.id!r} was rendered only: this machine has no compiler for it."
        if not compiled.ok:
            raise _wrong(strategy, "does not build", f"{compiled.reason}. {compiled.log[:2000]}".strip())
        if bench.backend != strategy.backend:
            return f"The strategy {strategy.id!r} was rendered and built, not run: there is no GPU here."
        result = bench.run(compiled, timing=False)
        if result.verdict != "correct":
            said = f"{result.verdict} on {example.operator.expression}: {result.reason}"
            raise _wrong(strategy, "gives no correct kernel", said)
        return ""

    def _compiled(self, strategy: Strategy, bench: Bench, kernel: Path) -> CompileResult | None:
        from htam_agent.backends.registry import backend

        if bench.backend == strategy.backend:
            return bench.compile(kernel)
        other = backend(strategy.backend)
        return bench.compile_for(other, kernel) if other.can_build().ok else None


def _best(code: Code) -> BestSoFar:
    from htam_agent.coding.base import BestSoFar
    from htam_agent.verdict import Times

    return BestSoFar(source=code.source, plan=code.plan, times_ms=Times())


def _wrong(strategy: Strategy, what: str, reason: str) -> StoreError:
    return StoreError(
        f"The strategy {strategy.id!r} {what}: {reason}",
        "Mend or leave it out; nothing was stored.",
        "memory-strategy",
    )
