"""Why candidates fail, as a closed vocabulary: what the repair edge and the memory carry besides words."""

from __future__ import annotations

from typing import Literal

from htam_agent.words import Record

FailureCause = Literal[
    "syntax", "symbol", "launch", "crash", "timeout", "race-like", "precision", "boundary", "layout", "special-values",
    "values", "form", "state", "rules", "unknown",
]  # fmt: skip
"""What a failure looks like:

- `syntax`: the text does not parse or does not compile; `symbol`: a name, header or member that does not exist;
- `launch`: a kernel cannot be called so (grid, block, shared memory, registers, arguments); `crash`: the process died
  or memory was accessed out of bounds; `timeout`;
- `race-like`: the same inputs give different results; `precision`: close, and not close enough; `boundary`: right but
  at the ends of a dimension, or a tail; `layout`: right values at wrong places, or a part of a dimension is wrong;
  `special-values`: NaN or infinities; `values`: wrong without such a structure; `form`: shape, dtype or containers;
  `state`: inputs or parameters changed; `rules`: refused by policy, or its figures cannot be believed.
"""

Pattern = Literal[
    "form", "unwritten", "not-finite", "zeros", "close", "boundary", "misplaced", "transposed", "strided", "part",
    "scaled", "shifted", "unstable", "everywhere", "scattered",
]  # fmt: skip
"""How a wrong output differs. `part`: one stretch of a dimension; `strided`: every k-th index of one; `misplaced`: the
expected values in another order; `scaled`, `shifted`: by one factor or summand; `unstable`: other results each time."""


class Difference(Record):
    """Where and how one output of a candidate differs from the expected one, in one trial."""

    output: str
    """"output", or "output 1" where there are several."""
    trial: str = ""
    """Label of the inputs: "x1 #1" are the task's own, "x0.01" scaled ones, other words name a family."""
    wrong: int
    total: int
    """Elements beyond the tolerance, of how many."""
    pattern: Pattern
    region: str = ""
    """Which indices are wrong, dimension by dimension, in words."""
    magnitude: str = ""
    """How far they are off, in words."""

    @property
    def narrow(self) -> bool:
        """Whether some index of a dimension is right everywhere."""
        return " only " in self.region

    def words(self) -> str:
        """One line for a person or a model."""
        parts = [f"{self.wrong} of {self.total} elements of {self.output} are wrong", self.region, self.magnitude]
        where = f" on the inputs {self.trial}" if self.trial else ""
        return f"{'; '.join(filter(None, parts))}{where} (pattern: {self.pattern})"


def seen_again(before: Difference, again: Difference | None) -> Difference:
    """A difference after a second call on the same inputs, which differed as `again` says (None: not at all).

    Other values at the same places are memory that the kernel does not write; other places are a race.
    """
    if again is not None and again.model_copy(update={"trial": before.trial}) == before:
        return before
    if again is not None and again.region == before.region and before.narrow:
        said = "called again on the same inputs, the same places hold other values: they are not written"
        return before.model_copy(update={"pattern": "unwritten", "magnitude": f"{before.magnitude}; {said}"})
    wrong = again.wrong if again is not None else 0
    said = f"called again on the same inputs, {wrong} elements were wrong"
    return before.model_copy(update={"pattern": "unstable", "magnitude": f"{before.magnitude}; {said}"})
