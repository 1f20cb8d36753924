"""What one more call of a candidate's variant gives, against what is expected of the candidate itself."""

from __future__ import annotations

from htam_agent.evaluation.messages import Answer, Judge
from htam_agent.evaluation.session import Session


def difference(session: Session, answer: Answer) -> str:
    """What differs, under the strict protocol, from what the reference expects of the inputs that it prepared last;
    empty when nothing does."""
    if answer.outputs is None:
        return "there is no output"
    judged = session.reference.judge(Judge(outputs=answer.outputs, tensors=answer.tensors, protocols=["strict"]))
    wrong = [finding for findings in judged.findings.values() for finding in findings if not finding.passed]
    return wrong[0].detail if wrong else ""
