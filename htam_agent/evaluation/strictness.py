"""The strict verdict on the outputs of a trial: the tolerance of verify.py and the float64 rule of accuracy.py.

An output is right when it has the expected form, NaN and infinities where they belong, and

- every element is within the tolerance, or else its error is within FACTOR times the reference's own error and the
  condition of the task alone, no floor (the tolerance is never under four times the reference's own error);
- in trials that ask for it (`exact`), its error obeys the float64 rule.

Outputs of at most FEW elements are judged by the rule at the end, over all trials together (`settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation import verify
from htam_agent.evaluation.accuracy import FACTOR, FEW, UNIT, Errors, measure
from htam_agent.evaluation.float64 import Float64Model
from htam_agent.evaluation.loading import Inputs
from htam_agent.evaluation.messages import Finding, Measured
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.rounding import CUT_SHARE, rounded_outputs
from htam_agent.evaluation.trees import dtype_name

if TYPE_CHECKING:
    import torch

MOVED_BY = 20260101
"""Seed of the moved inputs: which way each is moved is of no use to a candidate, and a verdict can be repeated."""


class Situation:
    """What outputs are judged against: the reference's in float32 without TF32 (`expected`), those at the declared
    precision (`declared`), and the inputs and the state from which they came."""

    def __init__(
        self,
        inputs: Inputs,
        values: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        declared: Sequence[torch.Tensor],
    ) -> None:
        self.inputs = inputs
        self.values = values
        self.expected = expected
        self.declared = declared
        self.scales: dict[int, float] = {}

    def scale(self, index: int) -> float:
        """rms of an expected output, computed once; 0 for integers and booleans."""
        if index not in self.scales:
            tensor = self.expected[index]
            self.scales[index] = verify.rms(tensor) if tensor.is_floating_point() else 0.0
        return self.scales[index]

    def name(self, index: int) -> str:
        return "output" if len(self.expected) == 1 else f"output {index}"


class StrictJudge:
    """Judges trials, of one candidate after the other. Of a random reference and of integers the rule says nothing."""

    def __init__(self, float64: Float64Model, allowance: float, rounds: ReferenceModel | None = None) -> None:
        """`rounds`: the reference, where a candidate may round the inputs of its products to TF32."""
        self._rounds = rounds
        self._float64 = float64
        self._allowance = allowance
        self._pools: dict[int, Measured] = {}
        self.measured: list[Measured] = []
        self.rescued = ""

    @property
    def reason(self) -> str:
        """Why float64 is not used; empty when it is."""
        return self._float64.reason

    def begin(self) -> None:
        """Forgets the errors of the candidate before."""
        self._pools = {}

    def judge(self, actual: Sequence[torch.Tensor], situation: Situation, exact: bool) -> list[Finding]:
        """One finding for each output."""
        self.measured, self.rescued = [], ""
        findings = []
        for index, (ours, theirs) in enumerate(zip(actual, situation.expected, strict=True)):
            scale = situation.scale(index) if theirs.is_floating_point() else None
            findings.append(verify.compare(ours, theirs, "strict", self._allowance, situation.name(index), scale))
        far = any(not finding.passed and finding.excess == 0.0 for finding in findings)
        if far or not self._float64.applies or not (exact or any(not finding.passed for finding in findings)):
            return findings
        return self._judge_exactly(actual, situation, findings)

    def settle(self) -> list[Finding]:
        """The findings on the outputs whose errors were pooled."""
        findings = []
        for pool in self._pools.values():
            passed = pool.errors.excess(pool.dtype, single=pool.single) <= 1.0
            detail = "" if passed else f"{pool.name}, over all trials: {pool.errors.describe(pool.dtype, pool.single)}"
            findings.append(Finding(name=pool.name, passed=passed, detail=detail))
        self.measured = list(self._pools.values())
        return findings

    def _judge_exactly(
        self, actual: Sequence[torch.Tensor], situation: Situation, findings: list[Finding]
    ) -> list[Finding]:
        truths = self._float64.run(situation.inputs, situation.values)
        single = truths is None
        truths = list(situation.expected) if truths is None else truths
        places = [index for index, tensor in enumerate(situation.expected) if base_dtype(tensor) in UNIT]
        terms = self._float64.terms
        measured = {
            index: self._measured(
                index, measure(actual[index], situation.declared[index], truths[index], terms=terms), situation, single
            )
            for index in places
        }
        doubtful = [index for index in places if not self._fine(measured[index], findings[index])]
        if doubtful:
            for index, errors in self._conditions(doubtful, situation, truths, single).items():
                known = measured[index]
                measured[index] = known.model_copy(update={"errors": known.errors.pooled_condition(errors)})
        judged = list(findings)
        for index in places:
            judged[index] = self._conclude(index, measured[index], findings[index])
        self.measured = list(measured.values())
        return judged

    def _conditions(
        self, doubtful: Sequence[int], situation: Situation, truths: Sequence[torch.Tensor], single: bool
    ) -> dict[int, Errors]:
        """What else may be allowed, for outputs about to be condemned: errors of moved inputs, and of TF32 products
        where the declared precision allows them."""
        found = dict.fromkeys(doubtful, Errors())

        def note(outputs: Sequence[torch.Tensor] | None, share: float = 1.0) -> None:
            for index in doubtful if outputs is not None else []:
                assert outputs is not None, "there are outputs only then"
                errors = measure(outputs[index], outputs[index], truths[index])
                found[index] = found[index].pooled_condition(errors.as_condition(share))

        if not single:
            note(self._float64.run(situation.inputs, situation.values, MOVED_BY))
        if self._rounds is not None:
            note(rounded_outputs(self._rounds, situation.inputs, situation.values, cut=False))
            note(rounded_outputs(self._rounds, situation.inputs, situation.values, cut=True), CUT_SHARE / FACTOR)
        return found

    def _measured(self, index: int, errors: Errors, situation: Situation, single: bool) -> Measured:
        dtype = base_dtype(situation.expected[index])
        return Measured(name=situation.name(index), dtype=dtype, errors=errors, single=single)

    def _fine(self, measured: Measured, finding: Finding) -> bool:
        few = measured.errors.count <= FEW
        return finding.passed and (few or measured.errors.excess(measured.dtype, single=measured.single) <= 1.0)

    def _conclude(self, index: int, measured: Measured, finding: Finding) -> Finding:
        errors, dtype = measured.errors, measured.dtype
        if not finding.passed:
            if errors.excess(dtype, single=measured.single, floors=False) > 1.0:
                return finding
            told = errors.describe(dtype, measured.single)
            self.rescued = f"{measured.name} is beyond the tolerance, and so is the reference: {told}"
        if errors.count <= FEW:
            pool = self._pools.get(index)
            pooled = errors if pool is None else pool.errors.pooled(errors)
            single = measured.single or (pool is not None and pool.single)
            self._pools[index] = measured.model_copy(update={"errors": pooled, "single": single})
            return Finding(name=finding.name, passed=True)
        if errors.excess(dtype, single=measured.single) <= 1.0:
            return Finding(name=finding.name, passed=True)
        detail = f"{measured.name}: {errors.describe(dtype, measured.single)}"
        return Finding(name=finding.name, passed=False, detail=detail)


def base_dtype(tensor: torch.Tensor) -> str:
    """The type of a tensor's numbers: "float32" for complex64."""
    return {"complex64": "float32", "complex32": "float16"}.get(name := dtype_name(tensor.dtype), name)
