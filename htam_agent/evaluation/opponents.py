"""Timing the reference itself: eager under PyTorch's defaults, eager with TF32, and compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation import flags
from htam_agent.evaluation.conditions import timed_conditions
from htam_agent.evaluation.loading import Inputs, call, failure, is_out_of_memory
from htam_agent.evaluation.messages import Block, Load, Timed, Variant, Warm
from htam_agent.evaluation.repeating import Repeater, Taken
from htam_agent.evaluation.stopwatch import Call

if TYPE_CHECKING:
    from torch import nn


class Opponents:
    """The reference model as it is timed. Runs in the reference worker."""

    def __init__(self, order: Load, model: nn.Module) -> None:
        self._order = order
        self._model = model
        self._compiled: Callable[..., object] | None = None
        self._repeater = Repeater(order.device)
        self.stopwatch = self._repeater.stopwatch

    def warm(self, order: Warm, inputs: Sequence[Inputs]) -> Timed:
        """Runs a variant until it is warm; the one time is the mean of a call."""
        watch = self.stopwatch
        timed = self._timed(order.variant, inputs, lambda calls: Taken([watch.warm(calls, order.seconds)]))
        self._repeater.forget()
        return timed

    def block(self, order: Block, inputs: Sequence[Inputs]) -> Timed:
        """Times a block of calls, or of nothing: what the harness's clock sees of that is no call's."""
        if order.empty:
            taken = self._repeater.repeat(order, [_nothing] * order.slots)
            return Timed(milliseconds=taken.milliseconds, reason=taken.reason)
        return self._timed(order.variant, inputs, lambda calls: self._repeater.repeat(order, calls))

    def forget(self) -> None:
        """Frees what timed calls left: outputs, a captured graph."""
        self._repeater.forget()

    def _timed(self, variant: Variant, inputs: Sequence[Inputs], measure: Callable[[Sequence[Call]], Taken]) -> Timed:
        try:
            with timed_conditions(lambda: flags.set_variant(variant, self._order.precision)):
                model = self._model if variant != "compile" else self._compile()
                taken = measure([functools.partial(call, model, values) for values in inputs])
            return Timed(milliseconds=taken.milliseconds, first_ms=taken.first_ms, reason=taken.reason)
        except Exception as error:  # the task's code ran, or torch.compile gave up: both are told apart here
            if variant != "compile":
                raise failure(self._order.task, "task-forward", "fails while it is timed", error) from error
            memory = "out of memory: " if is_out_of_memory(error) else ""
            return Timed(reason=f"torch.compile failed: {memory}{type(error).__name__}: {str(error)[:300]}")
        finally:
            flags.set_judging()

    def _compile(self) -> Callable[..., object]:
        import torch

        if self._compiled is None:
            compiled: Callable[..., object] = torch.compile(self._model)
            self._compiled = compiled
        return self._compiled


def _nothing() -> None:
    """What an empty block calls."""
