"""The reference worker: the only process that holds the user's model, the expected outputs and the comparison.

It owns the shared buffers. A candidate sees inputs, parameters and its own outputs there, never what is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.errors import HtamError, TaskError, UsageError, WorkerError
from htam_agent.evaluation import flags, verify
from htam_agent.evaluation.buffers import SharedBuffer, create_buffer
from htam_agent.evaluation.channel import Channel, Closed
from htam_agent.evaluation.loading import Inputs, LoadedTask, load_task, outputs_of
from htam_agent.evaluation.messages import (
    SHIFT_BYTES,
    SHIFTS,
    Ask,
    Blueprint,
    Finding,
    Judge,
    Judged,
    Load,
    Loaded,
    Prepare,
    Prepared,
    StateEntry,
    Told,
    Trouble,
)
from htam_agent.evaluation.opponents import Opponents, theoretical_bandwidth
from htam_agent.evaluation.state import changed_values, state_tensors
from htam_agent.evaluation.trees import (
    aligned,
    extent_of,
    flat_span,
    flatten,
    packed_like,
    specs_of,
    unflatten,
    view,
)
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
        channel.send(told, reference.take_descriptors())


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
            return Told(prepared=self.prepare(ask.prepare))
        if ask.judge is not None:
            with verify.one_thread():
                return Told(judged=self.judge(ask.judge))
        if ask.warm is not None:
            return Told(timed=self._opponents.warm(ask.warm, self._shared_inputs()))
        assert ask.block is not None, "a question has one field"
        return Told(timed=self._opponents.block(ask.block, self._shared_inputs()))

    # Loading

    def load(self, order: Load) -> Loaded:
        """Loads and traces the task, lays out the shared buffers and looks at the reference's own behaviour."""
        import torch

        from htam_agent.tracing import trace_model

        torch.set_num_threads(order.threads)
        flags.set_judging()
        self._order = order
        self._task: LoadedTask = load_task(order.task, order.device, order.precision, order.seed, order.python_path)
        self._model = self._task.model
        self._model.train()
        self._drawn: Inputs = self._task.draw(order.seed + 1)
        operator = trace_model(self._model, self._drawn, order.task.name)
        random = operator.random
        if random:
            self._model.eval()
            operator = trace_model(self._model, self._drawn, order.task.name, training=False)
        self._asserts = order.device != "cpu" and bool(ASSERTING & set(operator.operators))
        self._library = order.device != "cpu" and operator.operator_class in LIBRARY_CLASSES
        self._opponents = Opponents(order, self._model)
        self._observe()
        loaded = Loaded(
            operator=operator,
            blueprint=self._lay_out(),
            writes_inputs=any(self._mutated),
            allowance=self._own_error(),
            bandwidth=theoretical_bandwidth(order.device),
        )
        self._allowance = loaded.allowance
        notes, weak = self._notes(random, operator.random)
        return loaded.model_copy(update={"notes": notes, "weak": weak})

    def _observe(self) -> None:
        """One call of forward: which inputs and state it writes to, and what it returns."""
        names, tensors, persistent = state_tensors(self._model)
        self._names, self._state, self._parameters = names, tensors, persistent
        self._initial = [tensor.clone() for tensor in tensors]
        self._values = self._initial
        tree, inputs = flatten(self._drawn)
        copies = [tensor.clone() for tensor in inputs]
        given = unflatten(tree, copies)
        assert isinstance(given, list | dict)
        outputs = outputs_of(self._order.task, self._model, given)
        self._output_tree, self._expected = flatten(outputs)
        self._expected = [tensor.detach() for tensor in self._expected]
        with verify.one_thread():
            self._mutated = verify.differ(copies, inputs)
            self._changes = verify.differ(tensors, self._initial)
        self._finite = verify.all_finite(self._expected)
        self._restore(self._initial)
        self._changed = self._draw_changed_parameters()

    def _draw_changed_parameters(self) -> list[torch.Tensor] | None:
        """Other parameter values under which the reference runs and is still finite; None where there are none."""
        self._unchanged = DEVICE_CHECKS if self._asserts else "changed ones gave no finite outputs"
        if not any(self._parameters):
            return None
        if self._asserts:
            return None
        values = changed_values(self._initial, self._parameters, self._order.seed + 2)
        self._restore(values)
        try:
            _, tensors = flatten(outputs_of(self._order.task, self._model, self._copy_of_inputs()))
        except TaskError as error:
            self._unchanged = dropped(error)
            return None
        finally:
            self._restore(self._initial)
        return values if verify.all_finite(tensors) or not self._finite else None

    def _lay_out(self) -> Blueprint:
        """Makes the three buffers."""
        init_tree, init_tensors = flatten(self._task.init)
        input_tree, input_tensors = flatten(self._drawn)
        state_specs = specs_of(self._state)
        init_start = extent_of(self._state) if self._state else 0
        self._input_specs = specs_of(input_tensors)
        self._output_specs = specs_of([packed_like(tensor) for tensor in self._expected])
        input_bytes = extent_of(input_tensors) + SHIFTS * SHIFT_BYTES
        state_bytes = aligned(init_start + extent_of(init_tensors))
        self._draws = Draws(self._task, self._order.task.name, self._input_specs)
        output_bytes = max(extent_of(self._expected), extent_of([packed_like(t) for t in self._expected]))
        self._buffers = [self._create(size) for size in (input_bytes, state_bytes, output_bytes)]
        self._entries = [
            StateEntry(name=name, spec=spec, parameter=parameter, changes=changes)
            for name, spec, parameter, changes in zip(
                self._names, state_specs, self._parameters, self._changes, strict=True
            )
        ]
        blueprint = Blueprint(
            device=self._order.device,
            precision=self._order.precision,
            training=self._model.training,
            threads=self._order.threads,
            init=init_tree,
            init_tensors=specs_of(init_tensors, init_start),
            keyword_init=isinstance(self._task.init, dict),
            inputs=input_tree,
            input_tensors=self._input_specs,
            keyword_inputs=isinstance(self._drawn, dict),
            state=self._entries,
            input_bytes=self._buffers[0].size,
            state_bytes=self._buffers[1].size,
            output_bytes=self._buffers[2].size,
        )
        for tensor, spec in zip(init_tensors, blueprint.init_tensors, strict=True):
            flat_span(view(self._buffers[1].memory, spec)).copy_(flat_span(tensor))
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

    def _own_error(self) -> float:
        """The reference's relative error at the declared precision against full float32, on plain inputs."""
        if not self._library or self._order.precision != "tf32":
            return 0.0
        expected = self._forward()
        flags.set_declared("tf32")
        try:
            declared = self._forward()
        finally:
            flags.set_judging()
        pairs = [(a, b) for a, b in zip(declared, expected, strict=True) if b.is_floating_point()]
        return max((verify.relative_error(a, b) for a, b in pairs), default=0.0)

    def _notes(self, random: bool, still_random: bool) -> tuple[list[Check], str]:
        inputs = flatten(self._drawn)[1]
        self._expected = self._forward()
        with verify.one_thread():
            weak = verify.weak_against(self._expected, inputs, "strict")
            loose = verify.weak_against(self._expected, inputs, "kernelbench")
        detail = f"under KernelBench's tolerance a kernel that returns {loose} would pass" if loose else ""
        if weak:
            detail = f"a kernel that returns {weak} would pass: the task proves little"
        notes = [Check(name="task-not-weak", passed=not weak, detail=detail)]
        if random:
            detail = "random operator: judged in evaluation mode"
            if still_random:
                detail = "random even in evaluation mode: equality with the reference proves nothing and may fail"
            notes.append(Check(name="random", passed=not still_random, detail=detail))
        if not self._finite:
            notes.append(Check(name="finite", passed=True, detail="the reference itself gives NaN or infinities"))
        if any(self._parameters) and self._changed is None:
            kept = f"parameters stay as constructed: {self._unchanged}"
            notes.append(Check(name="parameters", passed=True, detail=kept))
        return notes, weak

    # One trial

    def prepare(self, order: Prepare) -> Prepared:
        """Puts inputs and state of a trial into shared memory and computes what is expected of it."""
        self._drawn, self._expected = [], []  # freed before as much again is made
        self._inputs_after: list[torch.Tensor] = []
        self._default_expected: list[torch.Tensor] | None = None
        if self._asserts and not 0.0 <= order.factor <= 1.0:
            return Prepared(usable=False, reason=DEVICE_CHECKS)
        self._drawn = self._draws.vary(order)
        for tensor, spec in zip(flatten(self._drawn)[1], self._input_specs, strict=True):
            flat_span(view(self._buffers[0].memory, spec, order.shift)).copy_(flat_span(tensor))
        changed = self._changed if order.changed_parameters else None
        self._values = changed if changed is not None else self._initial
        self._restore(self._values)
        for tensor, entry in zip(self._values, self._entries, strict=True):
            flat_span(view(self._buffers[1].memory, entry.spec)).copy_(flat_span(tensor))
        strayed = order.factor != 1.0 or order.blend or changed is not None
        try:
            self._compute_expected()
        except TaskError as error:
            if not strayed:
                raise
            return Prepared(usable=False, reason=dropped(error))
        self._buffers[2].memory.fill_(255)  # NaN in every floating type: what is not written is not right
        self._opponents.stopwatch.synchronize()
        if strayed and self._finite and not verify.all_finite(self._expected):
            return Prepared(usable=False, reason="the reference is not finite on it")
        return Prepared()

    def _compute_expected(self) -> None:
        self._scales: dict[int, float] = {}
        if self._library:
            flags.set_defaults()
            try:
                self._default_expected = self._forward()
            finally:
                flags.set_judging()
            self._restore(self._values)
        self._expected = self._forward(keep_inputs=True)
        self._state_after = [
            tensor.clone() if entry.changes else value
            for tensor, entry, value in zip(self._state, self._entries, self._values, strict=True)
        ]

    def _forward(self, keep_inputs: bool = False) -> list[torch.Tensor]:
        """The outputs of the drawn inputs. With `keep_inputs` what forward makes of its inputs is kept."""
        inputs = self._copy_of_inputs() if any(self._mutated) else self._drawn
        outputs = outputs_of(self._order.task, self._model, inputs)
        if keep_inputs:
            self._inputs_after = flatten(inputs)[1]
        self._output_tree, tensors = flatten(outputs)
        return [tensor.detach() for tensor in tensors]

    def _copy_of_inputs(self) -> Inputs:
        tree, tensors = flatten(self._drawn)
        copies = unflatten(tree, [tensor.clone() for tensor in tensors])
        assert isinstance(copies, list | dict)
        return copies

    def _restore(self, values: Sequence[torch.Tensor]) -> None:
        import torch

        with torch.no_grad():
            for tensor, value in zip(self._state, values, strict=True):
                tensor.copy_(value)

    def _shared_inputs(self) -> Inputs:
        """The inputs in shared memory: timed calls of both sides read the same ones."""
        tree, _ = flatten(self._drawn)
        inputs = unflatten(tree, [view(self._buffers[0].memory, spec) for spec in self._input_specs])
        assert isinstance(inputs, list | dict)
        return inputs

    def judge(self, order: Judge) -> Judged:
        """Compares the candidate's outputs, its inputs and its state after the call."""
        mismatch = verify.compare_tree(order.outputs, order.tensors, self._output_tree, self._expected)
        if mismatch:
            finding = Finding(name="form", passed=False, detail=mismatch)
            return Judged(findings={name: [finding] for name in order.protocols})
        actual = [view(self._buffers[2].memory, spec) for spec in self._output_specs]
        common = self._judge_inputs(order.shift) + (self._judge_state() if order.state else [])
        findings: dict[Protocol, list[Finding]] = {}
        strict_small = False
        for protocol in sorted(order.protocols, key=lambda name: name != "strict"):
            if strict_small or (protocol == "verified-fair" and "verified" in findings):
                known = findings["strict" if strict_small else "verified"]
                findings[protocol] = known
                continue
            outputs = self._judge_outputs(actual, protocol)
            findings[protocol] = outputs + common
            strict_small = protocol == "strict" and self._covers_all(outputs)
        return Judged(findings=findings)

    def _covers_all(self, outputs: Sequence[Finding]) -> bool:
        """Whether passing strict means passing the other protocols: same expectation, tolerance not above theirs."""
        if self._default_expected is not None or self._allowance or not all(finding.passed for finding in outputs):
            return False
        return all(self._scale(index) <= 1.0 for index in range(len(self._expected)))

    def _scale(self, index: int) -> float:
        """rms of an expected output, computed once in a trial; 0 for integers and booleans."""
        if index not in self._scales:
            tensor = self._expected[index]
            self._scales[index] = verify.rms(tensor) if tensor.is_floating_point() else 0.0
        return self._scales[index]

    def _judge_outputs(self, actual: Sequence[torch.Tensor], protocol: Protocol) -> list[Finding]:
        expected = self._expected
        if protocol != "strict" and self._default_expected is not None:
            expected = self._default_expected
        findings = []
        for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            name = "output" if len(expected) == 1 else f"output {index}"
            scale = self._scale(index) if protocol == "strict" and theirs.is_floating_point() else None
            findings.append(verify.compare(ours, theirs, protocol, self._allowance, name, scale))
        return findings

    def _judge_inputs(self, shift: int) -> list[Finding]:
        findings = []
        triples = zip(self._input_specs, self._inputs_after, self._mutated, strict=True)
        for index, (spec, after, mutated) in enumerate(triples):
            seen = view(self._buffers[0].memory, spec, shift)
            if mutated:
                findings.append(verify.compare(seen, after, "strict", self._allowance, f"input {index} afterwards"))
            else:
                findings.append(verify.same_bits(flat_span(seen), flat_span(after), f"input {index} afterwards"))
        return findings

    def _judge_state(self) -> list[Finding]:
        findings = []
        for entry, value in zip(self._entries, self._state_after, strict=True):
            seen = view(self._buffers[1].memory, entry.spec)
            name = f"{'parameter' if entry.parameter else 'buffer'} {entry.name} afterwards"
            if entry.changes:
                findings.append(verify.compare(seen, value, "strict", self._allowance, name))
            else:
                findings.append(verify.same_bits(flat_span(seen), flat_span(value), name))
        return findings
