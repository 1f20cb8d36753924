"""The trials of one task inside the reference worker: inputs and state laid out, expected outputs, the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from htam_agent.errors import TaskError
from htam_agent.evaluation import flags, verify
from htam_agent.evaluation.buffers import SharedBuffer
from htam_agent.evaluation.loading import Inputs
from htam_agent.evaluation.messages import Finding, Judge, Judged, Prepare, Prepared, Regime, StateEntry
from htam_agent.evaluation.nulls import Case
from htam_agent.evaluation.opponents import Opponents
from htam_agent.evaluation.plans import TrialPlan
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.strictness import Situation, StrictJudge
from htam_agent.evaluation.ties import Ties, has_integers, looking
from htam_agent.evaluation.trees import TensorSpec, dtype_name, flat_span, flatten, unflatten, view
from htam_agent.evaluation.variation import DEVICE_CHECKS, Draws, dropped
from htam_agent.evaluation.where import locate
from htam_agent.words import Precision, Protocol

if TYPE_CHECKING:
    import torch

UNDETERMINED = "finds equal values, whose places are not determined"
ATTEMPTS = 3
"""How often the parameters of a family are drawn, milder each time, before it is dropped."""


@dataclass
class Layout:
    """Where inputs, state and outputs lie in the three shared buffers."""

    buffers: list[SharedBuffer]
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    entries: list[StateEntry]
    slot_bytes: int = 0
    """From one set of inputs to the next in their buffer."""


class Trials:
    """Prepares trials and judges what a candidate leaves of them.

    `changed`: other values for the state, mild ones and bold ones for trials of a family, None where there are none.
    `library`: expected outputs depend on the flags. `asserts`: the reference checks the domain of its values on the
    device.
    """

    def __init__(
        self,
        reference: ReferenceModel,
        layout: Layout,
        draws: Draws,
        opponents: Opponents,
        strict: StrictJudge,
        *,
        precision: Precision,
        changed: tuple[list[torch.Tensor], list[torch.Tensor]] | None,
        library: bool,
        asserts: bool,
        allowance: float,
    ) -> None:
        self._reference = reference
        self._layout = layout
        self._draws = draws
        self._opponents = opponents
        self._strict = strict
        self._precision = precision
        self._changed = changed
        self._library = library
        self._asserts = asserts
        self._allowance = allowance
        self._drawn: Inputs = []
        self._finds_places = True
        self._distinct = False
        self._going_on: Inputs | None = None
        self._state_after: list[torch.Tensor] = []
        self._inputs_after: list[torch.Tensor] = []
        self._forget()

    def prepare(self, order: Prepare) -> Prepared:
        """Puts inputs and state of a trial into shared memory and computes what is expected of it."""
        left = self._left()
        self._forget()
        if order.redraw:
            self._opponents.forget()
        if order.first:
            self._strict.begin()
        if self._asserts and not 0.0 <= order.factor <= 1.0:
            return Prepared(usable=False, reason=DEVICE_CHECKS)
        changed = None
        if order.changed_parameters and self._changed is not None:
            changed = self._changed[1 if order.family else 0]
        self._values = changed if changed is not None else self._reference.initial
        self._going_on = None
        if order.go_on:
            self._values, self._going_on = left
        strayed = (
            order.factor != 1.0 or order.blend or bool(order.family) or self._values is not self._reference.initial
        )
        strayed = strayed or order.calls > 1
        reason = self._try_milder(order, strayed)
        if reason.endswith(UNDETERMINED) and order.family and not self._distinct:
            self._distinct = True
            reason = self._try_milder(order, strayed)
        if reason:
            return Prepared(usable=False, reason=reason)
        self._layout.buffers[2].memory.fill_(255)  # NaN in every floating type: what is not written is not right
        self._opponents.stopwatch.synchronize()
        return Prepared()

    def _try_milder(self, order: Prepare, strayed: bool) -> str:
        """Tries until the reference bears the values; why it bears none."""
        reason = ""
        for attempt in range(ATTEMPTS if order.family else 1):
            reason = self._try(order, attempt, strayed)
            if not reason or (reason.endswith(UNDETERMINED) and not self._distinct):
                break
        return reason

    def _left(self) -> tuple[list[torch.Tensor], Inputs | None]:
        """State and inputs as the reference's last call left them; no inputs where calls do not write to any."""
        if not any(self._reference.mutated) or not self._inputs_after:
            return self._state_after, None
        return self._state_after, self._with_tensors(self._inputs_after)

    def _with_tensors(self, tensors: list[torch.Tensor]) -> Inputs:
        """The drawn inputs with other tensors in them."""
        value = unflatten(flatten(self._drawn)[0], tensors)
        assert isinstance(value, list | dict)
        return value

    def _forget(self) -> None:
        """Frees what the trial before was judged by: as much again is made."""
        self._drawn = []
        self._expected: list[torch.Tensor] = []
        self._declared: list[torch.Tensor] = []
        self._inputs_after = []
        self._state_after = []
        self._situation: Situation | None = None

    def _try(self, order: Prepare, attempt: int, strayed: bool) -> str:
        """Draws values, writes them to shared memory and computes what is expected; why they cannot be used."""
        self._forget()
        reason = ""
        if self._going_on is None:
            self._drawn, reason = self._draws.vary(order, attempt, asserts=self._asserts, distinct=self._distinct)
        else:
            self._drawn = self._going_on
        if reason:
            return reason
        if order.write and self._going_on is None:
            place = order.shift + order.slot * self._layout.slot_bytes
            for tensor, spec in zip(flatten(self._drawn)[1], self._layout.inputs, strict=True):
                flat_span(view(self._layout.buffers[0].memory, spec, place)).copy_(flat_span(tensor))
        if not order.expect:
            self._opponents.stopwatch.synchronize()
            return ""
        for tensor, entry in zip(self._values, self._layout.entries, strict=True) if not order.go_on else ():
            flat_span(view(self._layout.buffers[1].memory, entry.spec)).copy_(flat_span(tensor))
        try:
            self._compute_expected(order.regime, order.calls)
        except TaskError as error:
            if not strayed:
                raise
            return dropped(error)
        if strayed and self._reference.finite and not verify.all_finite(self._expected):
            return "the reference is not finite on it"
        return self._undetermined() if order.family or self._values is not self._reference.initial else ""

    def _undetermined(self) -> str:
        """Why integers among the outputs are not determined: places of equal values. Empty where they are."""
        if not self._finds_places or not has_integers(self._expected):
            return ""
        ties = Ties()
        self._reference.restore(self._values)
        try:
            with looking(ties):
                self._reference.forward(self._drawn)
        except TaskError as error:
            return dropped(error)
        finally:
            self._reference.restore(self._values)
        self._finds_places = ties.looked
        return f"{ties.operator} {UNDETERMINED}" if ties.operator else ""

    def _compute_expected(self, regime: Regime, calls: int) -> None:
        """Outputs under the flags of the regime; under the declared ones in full float32 too, for strict."""
        self._declared = []
        if self._library and regime == "declared" and self._precision == "tf32":
            self._declared = self._forward(lambda: flags.set_declared(self._precision), calls)
        set_flags = flags.set_defaults if self._library and regime == "defaults" else flags.set_judging
        self._expected = self._forward(set_flags, calls)
        self._situation = Situation(self._drawn, self._values, self._expected, self._declared or self._expected)

    def _forward(self, set_flags: Callable[[], None], calls: int) -> list[torch.Tensor]:
        """The outputs of the last of so many calls on the drawn inputs under these flags; inputs and state after it are
        kept."""
        self._reference.restore(self._values)
        set_flags()
        try:
            outputs, self._inputs_after = self._reference.forward(self._drawn)
            for _ in range(calls - 1):
                outputs, self._inputs_after = self._reference.forward(self._with_tensors(self._inputs_after))
        finally:
            flags.set_judging()
        self._state_after = [
            tensor.clone() if entry.changes else value
            for tensor, entry, value in zip(self._reference.state, self._layout.entries, self._values, strict=True)
        ]
        return outputs

    def cases(self, plans: Sequence[TrialPlan], seed: int) -> Iterator[Case]:
        """Inputs and expected outputs of the trials of these plans that can be had, one after the other."""
        for number, plan in enumerate(plans):
            order = Prepare(
                seed=seed + number,
                factor=plan.factor,
                family=plan.family,
                changed_parameters=plan.changed_parameters,
                regime=plan.regime,
            )
            if self.prepare(order).usable:
                yield flatten(self._drawn)[1], self._expected
        self._forget()

    def shared_inputs(self, slot: int = 0) -> Inputs:
        """A set of inputs in shared memory: timed calls of both sides read the same ones."""
        tree, _ = flatten(self._drawn)
        memory, place = self._layout.buffers[0].memory, slot * self._layout.slot_bytes
        inputs = unflatten(tree, [view(memory, spec, place) for spec in self._layout.inputs])
        assert isinstance(inputs, list | dict)
        return inputs

    def judge(self, order: Judge) -> Judged:
        """Compares the candidate's outputs; for strict its inputs and its state after the call as well. The other
        protocols are taken literally: they look at outputs alone."""
        mismatch = verify.compare_tree(order.outputs, order.tensors, self._reference.output_tree, self._expected)
        if mismatch:
            finding = Finding(name="form", passed=False, detail=mismatch)
            return Judged(findings={name: [finding] for name in order.protocols})
        actual = [view(self._layout.buffers[2].memory, spec) for spec in self._layout.outputs]
        findings: dict[Protocol, list[Finding]] = {}
        for protocol in sorted(order.protocols, key=lambda name: name != "strict"):
            known = next((name for name in findings if self._same(name, protocol)), None)
            judged_now = findings[known] if known else self._judge_outputs(actual, protocol, order.exact)
            findings[protocol] = judged_now if known else self._located(judged_now, actual, protocol)
        if "strict" in findings:
            place = order.shift + order.slot * self._layout.slot_bytes
            inputs = [] if order.overwritten else self._judge_inputs(place)
            after = [*inputs, *(self._judge_state() if order.state else [])]
            findings["strict"] = [*findings["strict"], *after]
        judged = Judged(findings=findings)
        if "strict" not in findings:
            return judged
        strict = self._strict
        update = {"measured": strict.measured, "rescued": strict.rescued, "float64_reason": strict.reason}
        return judged.model_copy(update=update)

    def settle(self) -> Judged:
        """What strict says of the outputs whose errors are judged over all trials together."""
        findings = self._strict.settle()
        return Judged(findings={"strict": findings}, measured=self._strict.measured)

    def _same(self, judged: Protocol, protocol: Protocol) -> bool:
        """Whether the findings of one protocol are those of another: the same values at the same tolerance, or strict
        passed on the same values with a tolerance that is not above the other's."""
        if judged == "strict":
            assert self._situation is not None, "a trial is prepared before it is judged"
            small = all(self._situation.scale(index) <= 1.0 for index in range(len(self._expected)))
            plain = not self._declared and not self._allowance and not self._strict.rescued
            return self._passed and small and plain and self._reference.finite
        return {judged, protocol} == {"verified", "verified-fair"} and not self._declared

    def _judge_outputs(self, actual: Sequence[torch.Tensor], protocol: Protocol, exact: bool) -> list[Finding]:
        assert self._situation is not None, "a trial is prepared before it is judged"
        if protocol == "strict":
            findings = self._strict.judge(actual, self._situation, exact)
            self._passed = all(finding.passed for finding in findings)
            return findings
        expected = self._declared or self._expected
        return [
            verify.compare(ours, theirs, protocol, name=self._situation.name(index))
            for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True))
        ]

    def _located(
        self, findings: Sequence[Finding], actual: Sequence[torch.Tensor], protocol: Protocol
    ) -> list[Finding]:
        """The findings on outputs, those that failed with where and how the output differs."""
        assert self._situation is not None, "a trial is prepared before it is judged"
        located = list(findings)
        for index, finding in enumerate(findings):
            if finding.passed:
                continue
            theirs = self._expected[index] if protocol == "strict" else (self._declared or self._expected)[index]
            share = verify.tolerance(protocol, dtype_name(theirs.dtype), self._allowance)
            scale = self._situation.scale(index) if protocol == "strict" else 1.0
            difference = locate(actual[index], theirs, finding.name, share, scale)
            located[index] = finding.model_copy(update={"difference": difference})
        return located

    def _judge_inputs(self, place: int) -> list[Finding]:
        findings = []
        triples = zip(self._layout.inputs, self._inputs_after, self._reference.mutated, strict=True)
        for index, (spec, after, mutated) in enumerate(triples):
            seen = view(self._layout.buffers[0].memory, spec, place)
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
