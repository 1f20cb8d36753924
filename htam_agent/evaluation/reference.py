"""The reference worker: the only process that holds the user's model, the expected outputs and the comparison.

It owns the shared buffers. A candidate sees inputs, parameters and its own outputs there, never what is expected.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from htam_agent.errors import HtamError, TaskError, UsageError, WorkerError
from htam_agent.evaluation import flags, verify
from htam_agent.evaluation.buffers import SharedBuffer, create_buffer
from htam_agent.evaluation.channel import Channel, Closed
from htam_agent.evaluation.deep.other_shapes import OtherShapes
from htam_agent.evaluation.float64 import Float64Model
from htam_agent.evaluation.loading import Inputs, LoadedTask, first_line, is_out_of_memory, load_task
from htam_agent.evaluation.messages import (
    SHIFT_BYTES,
    SHIFTS,
    Ask,
    Blueprint,
    Load,
    Loaded,
    StateEntry,
    Told,
    Trouble,
)
from htam_agent.evaluation.nulls import passing_nulls
from htam_agent.evaluation.opponents import Opponents
from htam_agent.evaluation.plans import PROTOCOLS, plan_trials
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.slots import slots_for
from htam_agent.evaluation.state import changed_values
from htam_agent.evaluation.strictness import StrictJudge
from htam_agent.evaluation.trees import aligned, extent_of, flat_span, flatten, packed_like, specs_of, view
from htam_agent.evaluation.trials import Layout, Trials
from htam_agent.evaluation.variation import ASSERTING, DEVICE_CHECKS, Draws, dropped
from htam_agent.verdict import Check
from htam_agent.words import Protocol

if TYPE_CHECKING:
    import torch

LIBRARY_CLASSES = ("matmul", "convolution", "attention", "composite", "other")
"""Operators that may run in TF32, whose expected output depends on the flags."""


def serve_reference(channel: Channel) -> None:
    """Answers the main process's questions until it hangs up."""
    reference = Reference()
    while True:
        try:
            ask = channel.receive(Ask)
        except Closed:
            return
        try:
            told = reference.answer(ask)
        except HtamError as error:
            usage = isinstance(error, UsageError)
            told = Told(trouble=Trouble(code=error.code, message=error.message, remedy=error.remedy, usage=usage))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            told = Told(trouble=too_large(error))
        channel.send(told, reference.take_descriptors())


def too_large(error: BaseException) -> Trouble:
    """Memory that ran out anywhere in this process, in a comparison too, is a fact about the task."""
    return Trouble(
        code="task-too-large",
        message=f"The task is too large for this device: {first_line(error)}",
        remedy="Use smaller inputs or a device with more memory.",
    )


class Reference:
    """One task, its private values and the shared buffers."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def take_descriptors(self) -> list[int]:
        """Descriptors of buffers that were made by the last answer."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def answer(self, ask: Ask) -> Told:
        """Does what is asked. Raises TaskError for faults of the task, WorkerError for faults of the machine."""
        if ask.load is not None:
            return Told(loaded=self.load(ask.load))
        if ask.prepare is not None:
            return Told(prepared=self._trials.prepare(ask.prepare))
        if ask.judge is not None:
            with verify.one_thread():
                return Told(judged=self._trials.judge(ask.judge))
        if ask.settle:
            return Told(judged=self._trials.settle())
        if ask.other_shapes is not None:
            return Told(other_shapes=self._other_shapes.prepare(ask.other_shapes))
        if ask.other_outputs is not None:
            return Told(other_outputs=self._other_shapes.judge(ask.other_outputs))
        if ask.warm is not None:
            return Told(timed=self._opponents.warm(ask.warm, [self._trials.shared_inputs()]))
        assert ask.block is not None, "a question has one field"
        inputs = [self._trials.shared_inputs(slot) for slot in range(ask.block.slots)]
        return Told(timed=self._opponents.block(ask.block, inputs))

    def load(self, order: Load) -> Loaded:
        """Loads and traces the task, lays out the shared buffers and looks at the reference's own behaviour."""
        import torch

        from htam_agent.tracing import trace_model

        torch.set_num_threads(order.threads)
        flags.set_judging()
        self._order = order
        self._task: LoadedTask = load_task(order.task, order.device, order.precision, order.seed, order.python_path)
        model = self._task.model
        model.train()
        drawn: Inputs = self._task.draw(order.seed + 1)
        operator = trace_model(model, drawn, order.task.name)
        random = operator.random
        if random:
            model.eval()
            operator = trace_model(model, drawn, order.task.name, training=False)
        self._asserts = order.device != "cpu" and bool(ASSERTING & set(operator.operators))
        library = order.device != "cpu" and operator.operator_class in LIBRARY_CLASSES
        self._opponents = Opponents(order, model)
        self._model = ReferenceModel(order.task, model, drawn)
        changed = self._draw_changed_parameters(drawn)
        blueprint = self._lay_out(drawn)
        float64 = Float64Model(self._model, drawn, order.device)
        allowance = self._own_error(drawn) if library and order.precision == "tf32" else 0.0
        rounds = self._model if library and order.precision == "tf32" else None
        self._trials = Trials(
            self._model,
            self._layout,
            Draws(self._task, order.task.name, self._layout.inputs),
            self._opponents,
            StrictJudge(float64, allowance, rounds),
            precision=order.precision,
            changed=changed,
            library=library,
            asserts=self._asserts,
            allowance=allowance,
        )
        # A judge of its own: errors that are pooled over the trials of a candidate stay apart.
        self._other_shapes = OtherShapes(
            self._model, self._task, order.device, order.precision, StrictJudge(float64, allowance, rounds)
        )
        if operator.random:
            float64.applies = False
        probe, weak = self._probe(drawn, order.seed + 3)
        notes = [probe, *self._notes(changed is not None, random, operator.random)]
        self._model.outputs = []  # as much again is made in every trial
        return Loaded(
            operator=operator,
            blueprint=blueprint,
            writes_inputs=any(self._model.mutated),
            aliases_inputs=self._model.aliases,
            allowance=allowance,
            notes=notes,
            weak=weak,
            flags_matter=library and order.precision in ("tf32", "ieee"),
            float64_reason=float64.reason,
            float64_seconds=float64.seconds,
            float64_applies=float64.applies,
            clock=self._opponents.stopwatch.missing,
        )

    def _draw_changed_parameters(self, drawn: Inputs) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """Other parameter values, mild ones under which the reference runs and is still finite, and bold ones; None
        where there are none."""
        model = self._model
        self._unchanged = DEVICE_CHECKS if self._asserts else "changed ones gave no finite outputs"
        if not any(model.parameters) or self._asserts:
            return None
        mild, bold = changed_values(model.initial, model.parameters, self._order.seed + 2)
        model.restore(mild)
        try:
            tensors, _ = model.forward(drawn)
        except TaskError as error:
            self._unchanged = dropped(error)
            return None
        finally:
            model.restore(model.initial)
        return (mild, bold) if verify.all_finite(tensors) or not model.finite else None

    def _lay_out(self, drawn: Inputs) -> Blueprint:
        """Makes the three buffers."""
        model = self._model
        init_tree, init_tensors = flatten(self._task.init)
        input_tree, input_tensors = flatten(drawn)
        state_specs = specs_of(model.state)
        init_start = extent_of(model.state) if model.state else 0
        slot_bytes = aligned(extent_of(input_tensors) + SHIFTS * SHIFT_BYTES)
        state_bytes = aligned(init_start + extent_of(init_tensors))
        packed = [packed_like(tensor) for tensor in model.outputs]
        output_bytes = max(extent_of(model.outputs), extent_of(packed))
        slots = (
            1 if any(model.mutated) or any(model.changes) else slots_for(self._order.device, slot_bytes, output_bytes)
        )
        self._layout = Layout(
            buffers=[self._create(size) for size in (slots * slot_bytes, state_bytes, output_bytes)],
            inputs=specs_of(input_tensors),
            outputs=specs_of(packed),
            entries=[
                StateEntry(name=name, spec=spec, parameter=parameter, changes=changes)
                for name, spec, parameter, changes in zip(
                    model.names, state_specs, model.parameters, model.changes, strict=True
                )
            ],
            slot_bytes=slot_bytes,
        )
        buffers = self._layout.buffers
        blueprint = Blueprint(
            device=self._order.device,
            precision=self._order.precision,
            training=model.model.training,
            threads=self._order.threads,
            init=init_tree,
            init_tensors=specs_of(init_tensors, init_start),
            keyword_init=isinstance(self._task.init, dict),
            inputs=input_tree,
            input_tensors=self._layout.inputs,
            keyword_inputs=isinstance(drawn, dict),
            state=self._layout.entries,
            input_bytes=buffers[0].size,
            state_bytes=buffers[1].size,
            output_bytes=buffers[2].size,
            slots=slots,
            slot_bytes=slot_bytes,
        )
        for tensor, spec in zip(init_tensors, blueprint.init_tensors, strict=True):
            flat_span(view(buffers[1].memory, spec)).copy_(flat_span(tensor))
        return blueprint

    def _create(self, size: int) -> SharedBuffer:
        import torch

        if self._order.device != "cpu":
            torch.cuda.empty_cache()  # what torch's allocator keeps is no memory for the driver's
        try:
            buffer = create_buffer(self._order.device, size)
        except WorkerError as error:
            if error.code == "out-of-memory":
                raise TaskError(
                    f"The task {self._order.task.name!r} is too large for this device: {error.message}",
                    error.remedy,
                    "task-too-large",
                ) from error
            raise
        self._descriptors.append(buffer.descriptor)
        return buffer

    def _own_error(self, drawn: Inputs) -> float:
        """The reference's relative error at the declared precision against full float32, on plain inputs."""
        expected, _ = self._model.forward(drawn)
        self._model.restore(self._model.initial)
        flags.set_declared(self._order.precision)
        try:
            declared, _ = self._model.forward(drawn)
        finally:
            flags.set_judging()
            self._model.restore(self._model.initial)
        pairs = [(a, b) for a, b in zip(declared, expected, strict=True) if b.is_floating_point()]
        return max((verify.relative_error(a, b) for a, b in pairs), default=0.0)

    def _notes(self, changed: bool, random: bool, still_random: bool) -> list[Check]:
        notes = []
        if random:
            detail = "random operator: judged in evaluation mode"
            if still_random:
                detail = "random even in evaluation mode: equality with the reference proves nothing and may fail"
            notes.append(Check(name="random", passed=not still_random, detail=detail))
        if self._model.kept:
            detail = (
                f"forward keeps {', '.join(self._model.kept[:4])} from call to call, which is no buffer: each call of "
                "the reference begins as constructed, and a candidate that goes on from the call before differs"
            )
            notes.append(Check(name="state", passed=False, detail=detail))
        if not self._model.finite:
            notes.append(Check(name="finite", passed=True, detail="the reference itself gives NaN or infinities"))
        if any(self._model.parameters) and not changed:
            kept = f"parameters stay as constructed: {self._unchanged}"
            notes.append(Check(name="parameters", passed=True, detail=kept))
        return notes

    def _probe(self, drawn: Inputs, seed: int) -> tuple[Check, str]:
        """Which null kernels would pass, under strict and under the other protocols."""
        found: dict[Protocol, list[str]] = {}
        has_parameters = any(self._model.parameters)
        first = flatten(drawn)[1], self._model.outputs
        with verify.one_thread():
            for protocol in PROTOCOLS:
                plans = plan_trials([protocol], has_parameters)
                cases = itertools.chain([first], self._trials.cases(plans[1:], seed))
                found[protocol] = passing_nulls(cases, protocol)
        weak = ", ".join(found["strict"])
        loose = [f"{' and '.join(names)} under {name}" for name, names in found.items() if names]
        detail = f"would pass without computing anything: {'; '.join(loose)}" if loose else ""
        return Check(name="task-not-weak", passed=not weak, detail=detail), weak
