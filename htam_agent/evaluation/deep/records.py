"""What the main process and the reference worker say to each other about other shapes."""

from __future__ import annotations

from pydantic import Field

from htam_agent.evaluation.channel import Letter
from htam_agent.evaluation.trees import TensorSpec, Tree


class ShapeCase(Letter):
    """Inputs of one form. `file`: where their values lie, contiguous one after the other; empty: the runner draws some.

    `given`: the shapes are the task's own. `small`: few enough elements for a sanitizer.
    """

    label: str
    inputs: Tree
    tensors: list[TensorSpec]
    file: str = ""
    given: bool = False
    small: bool = False

    @property
    def elements(self) -> int:
        """Over all tensors."""
        return sum(spec.span for spec in self.tensors)


class DeepPrepare(Letter):
    """Order: put the model's state and the inputs of each form into files of `folder`; keep what is expected.

    `largest_bytes`: of the inputs of one form. `small_elements`: of the inputs for a sanitizer, where the task's form
    allows it.
    """

    folder: str
    seed: int
    largest_bytes: int
    small_elements: int


class DeepPrepared(Letter):
    """`init` and `state` describe the two files of that name; `dropped`: the forms that the reference does not take."""

    init: list[TensorSpec] = Field(default_factory=list)
    state: list[TensorSpec] = Field(default_factory=list)
    cases: list[ShapeCase] = Field(default_factory=list)
    dropped: list[str] = Field(default_factory=list)


class DeepJudge(Letter):
    """Order: compare the outputs in `file` with what is expected of the case of this label."""

    label: str
    file: str
    outputs: Tree
    tensors: list[TensorSpec]


class DeepJudged(Letter):
    """Right, or what differs where."""

    passed: bool
    detail: str = ""
