"""One evaluation or profile for `htam mcp`, in a process of its own that a cancelled call can end:
`python -m htam_agent.serving_call evaluate|profile JSON`. The last line of standard output is the answer."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

from htam_agent.cli.output import INTERRUPTED, ErrorBody
from htam_agent.errors import HtamError
from htam_agent.judging import Evaluation, evaluate_kernels
from htam_agent.settings import Settings
from htam_agent.task import Task
from htam_agent.tools.standalone import session_for
from htam_agent.verdict import ProfileResult
from htam_agent.words import Record


class Arguments(Record):
    """What is to be looked at."""

    task: str
    kernel: str
    backend: str = "auto"
    counters: bool = False


class Answer(Record):
    """One of them."""

    evaluation: Evaluation | None = None
    profile: ProfileResult | None = None
    error: ErrorBody | None = None


def answer(kind: str, given: Arguments) -> Answer:
    """Raises HtamError."""
    if kind == "profile":
        with session_for(given.task, given.backend, counters=given.counters) as session:
            return Answer(profile=session.profile(given.kernel))
    settings = Settings.load({"backend": given.backend}, given="call")
    with closing(evaluate_kernels(Task.parse(given.task), [Path(given.kernel)], settings)) as found:
        return Answer(evaluation=next(found))


def main(arguments: list[str]) -> int:
    """The exit code of the command line; what can be said is in the answer."""
    kind, text = arguments
    try:
        found = answer(kind, Arguments.model_validate(json.loads(text)))
    except HtamError as error:
        found = Answer(error=ErrorBody(code=error.code, message=error.message, remedy=error.remedy))
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write(found.model_dump_json(by_alias=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
