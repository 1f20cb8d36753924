"""What calls of a candidate's variant give, against what is expected of the candidate itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from htam_agent.evaluation.messages import Answer, Family, Judge, Prepare
from htam_agent.evaluation.session import Session

VALUES: tuple[tuple[Family, float, bool], ...] = (
    ("", 1.0, False), ("", 1.0, True), ("sign", 1.0, False), ("shift", 1.0, True), ("scale", 1.0, False),
    ("", -1.0, True),
)  # fmt: skip
"""Families and factors of inputs, and whether parameters are changed, in turn: on a task's own values an operator may
be a copy (ReLU of positive ones, a scale whose parameter starts as ones, a bias that starts as zeros)."""


@dataclass(frozen=True)
class Difference:
    """`what` differs, empty when nothing does. `undecided`: why no difference proves nothing."""

    what: str
    undecided: str = ""


def difference(session: Session, draw_seed: Callable[[], int], call: Callable[[], Answer]) -> Difference:
    """What differs, under the strict protocol, on the first of several kinds of inputs where anything does.

    `call` is asked for one call of the variant on the inputs that were prepared last. Raises whatever it raises.
    """
    floating = False
    for family, factor, changed in VALUES:
        order = Prepare(seed=draw_seed(), family=family, factor=factor, changed_parameters=changed)
        prepared = session.reference.prepare(order)
        if not prepared.usable:
            continue
        answer = call()
        if answer.outputs is None:
            return Difference("there is no output")
        judged = session.reference.judge(Judge(outputs=answer.outputs, tensors=answer.tensors, protocols=["strict"]))
        wrong = [finding for findings in judged.findings.values() for finding in findings if not finding.passed]
        if wrong:
            return Difference(wrong[0].detail)
        floating = floating or any(spec.dtype.startswith(("float", "bfloat", "complex")) for spec in answer.tensors)
    if session.loaded.weak:
        return Difference("", f"this passes without computing anything: {session.loaded.weak}")
    # What lies in fresh memory may be what such an operator gives (no element is NaN, say).
    return Difference("", "" if floating else "no output is floating, and left-over memory may be right")
