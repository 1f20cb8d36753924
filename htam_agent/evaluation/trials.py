"""The trials of one task inside the reference worker: inputs and state laid out, expected outputs, the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from htam_agent.errors import TaskError
from htam_agent.evaluation import flags, verify
from htam_agent.evaluation.buffers import SharedBuffer
from htam_agent.evaluation.loading import Inputs
from htam_agent.evaluation.messages import Finding, Judge, Judged, Prepare, Prepared, StateEntry
from htam_agent.evaluation.opponents import Opponents
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.trees import TensorSpec, flat_span, flatten, unflatten, view
from htam_agent.evaluation.variation import DEVICE_CHECKS, Draws, dropped
from htam_agent.words import Protocol

if TYPE_CHECKING:
    import torch


@dataclass
class Layout:
    """Where inputs, state and outputs lie in the three shared buffers."""

    buffers: list[SharedBuffer]
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    entries: list[StateEntry]


class Trials:
    """Prepares trials and judges what a candidate leaves of them.

    `changed`: other values for the state, None where there are none. `library`: the expected output depends on the
    flags. `asserts`: the reference checks the domain of its values on the device.
    """

    def __init__(
        self,
        reference: ReferenceModel,
        layout: Layout,
        draws: Draws,
        opponents: Opponents,
        *,
        changed: list[torch.Tensor] | None,
        library: bool,
        asserts: bool,
        allowance: float,
    ) -> None:
        self._reference = reference
        self._layout = layout
        self._draws = draws
        self._opponents = opponents
        self._changed = changed
        self._library = library
        self._asserts = asserts
        self._allowance = allowance
        self._drawn: Inputs = []
        self._expected: list[torch.Tensor] = []

    def prepare(self, order: Prepare) -> Prepared:
        """Puts inputs and state of a trial into shared memory and computes what is expected of it."""
        self._drawn, self._expected = [], []  # freed before as much again is made
        self._inputs_after: list[torch.Tensor] = []
        self._default_expected: list[torch.Tensor] | None = None
        if self._asserts and not 0.0 <= order.factor <= 1.0:
            return Prepared(usable=False, reason=DEVICE_CHECKS)
        self._drawn = self._draws.vary(order)
        for tensor, spec in zip(flatten(self._drawn)[1], self._layout.inputs, strict=True):
            flat_span(view(self._layout.buffers[0].memory, spec, order.shift)).copy_(flat_span(tensor))
        changed = self._changed if order.changed_parameters else None
        self._values = changed if changed is not None else self._reference.initial
        self._reference.restore(self._values)
        for tensor, entry in zip(self._values, self._layout.entries, strict=True):
            flat_span(view(self._layout.buffers[1].memory, entry.spec)).copy_(flat_span(tensor))
        strayed = order.factor != 1.0 or order.blend or changed is not None
        try:
            self._compute_expected()
        except TaskError as error:
            if not strayed:
                raise
            return Prepared(usable=False, reason=dropped(error))
        self._layout.buffers[2].memory.fill_(255)  # NaN in every floating type: what is not written is not right
        self._opponents.stopwatch.synchronize()
        if strayed and self._reference.finite and not verify.all_finite(self._expected):
            return Prepared(usable=False, reason="the reference is not finite on it")
        return Prepared()

    def _compute_expected(self) -> None:
        self._scales: dict[int, float] = {}
        if self._library:
            flags.set_defaults()
            try:
                self._default_expected, _ = self._reference.forward(self._drawn)
            finally:
                flags.set_judging()
            self._reference.restore(self._values)
        self._expected, self._inputs_after = self._reference.forward(self._drawn)
        self._state_after = [
            tensor.clone() if entry.changes else value
            for tensor, entry, value in zip(self._reference.state, self._layout.entries, self._values, strict=True)
        ]

    def shared_inputs(self) -> Inputs:
        """The inputs in shared memory: timed calls of both sides read the same ones."""
        tree, _ = flatten(self._drawn)
        inputs = unflatten(tree, [view(self._layout.buffers[0].memory, spec) for spec in self._layout.inputs])
        assert isinstance(inputs, list | dict)
        return inputs

    def judge(self, order: Judge) -> Judged:
        """Compares the candidate's outputs, its inputs and its state after the call."""
        mismatch = verify.compare_tree(order.outputs, order.tensors, self._reference.output_tree, self._expected)
        if mismatch:
            finding = Finding(name="form", passed=False, detail=mismatch)
            return Judged(findings={name: [finding] for name in order.protocols})
        actual = [view(self._layout.buffers[2].memory, spec) for spec in self._layout.outputs]
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
        triples = zip(self._layout.inputs, self._inputs_after, self._reference.mutated, strict=True)
        for index, (spec, after, mutated) in enumerate(triples):
            seen = view(self._layout.buffers[0].memory, spec, shift)
            if mutated:
                findings.append(verify.compare(seen, after, "strict", self._allowance, f"input {index} afterwards"))
            else:
                findings.append(verify.same_bits(flat_span(seen), flat_span(after), f"input {index} afterwards"))
        return findings

    def _judge_state(self) -> list[Finding]:
        findings = []
        for entry, value in zip(self._layout.entries, self._state_after, strict=True):
            seen = view(self._layout.buffers[1].memory, entry.spec)
            name = f"{'parameter' if entry.parameter else 'buffer'} {entry.name} afterwards"
            if entry.changes:
                findings.append(verify.compare(seen, value, "strict", self._allowance, name))
            else:
                findings.append(verify.same_bits(flat_span(seen), flat_span(value), name))
        return findings
