"""Run `htam ...` in this process and kill it with SIGKILL in a node: `killed_run.py NODE VISIT ARGUMENTS...`.

The node's whole work is done before the signal and its answer is lost: the hardest moment, since everything that the
node left outside the state is there, and the state does not know.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from htam_agent.cli import main
from htam_agent.graph import nodes


def dying(work: Callable[[Any, Any], Any], visit: int) -> Callable[[Any, Any], Any]:
    """`work`, but the process dies at the end of its `visit`-th call."""
    calls = 0

    def node(state: Any, runtime: nodes.Runtime[nodes.Context]) -> Any:
        nonlocal calls
        calls += 1
        own = calls  # several candidates may be in the same node side by side
        answer = work(state, runtime)
        if own == visit:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return node


if __name__ == "__main__":
    name, visit = sys.argv[1], int(sys.argv[2])
    setattr(nodes, name, dying(getattr(nodes, name), visit))
    main(sys.argv[3:])
