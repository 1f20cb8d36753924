"""Other shapes in the reference worker: their inputs, what is expected of them, and the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.errors import TaskError
from htam_agent.evaluation import flags, verify
from htam_agent.evaluation.deep.exchange import BadFile, read_tensors, write_tensors
from htam_agent.evaluation.deep.extents import Extents, Resize
from htam_agent.evaluation.deep.orders import INIT, STATE
from htam_agent.evaluation.deep.records import DeepJudge, DeepJudged, DeepPrepare, DeepPrepared, ShapeCase
from htam_agent.evaluation.loading import Inputs, LoadedTask
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.strictness import Situation, StrictJudge
from htam_agent.evaluation.trees import Tree, flatten, unflatten
from htam_agent.words import Precision

if TYPE_CHECKING:
    import torch

OUTPUT_LIMIT = 1 << 30
"""Bytes of a file of outputs that is read at most."""


class OtherShapes:
    """The forms of one task that were prepared last, with what the reference gives for them (on its own device)."""

    def __init__(
        self, model: ReferenceModel, task: LoadedTask, device: str, precision: Precision, strict: StrictJudge
    ) -> None:
        self._model = model
        self._task = task
        self._device = device
        self._precision: Precision = precision
        self._strict = strict
        self._expected: dict[str, tuple[Tree, Situation]] = {}

    def prepare(self, order: DeepPrepare) -> DeepPrepared:
        """Writes the constructor's tensors, the state as constructed and the inputs of each form into files, and keeps
        the reference's outputs. A form that the reference fails on, or is not finite on, is dropped and named."""
        folder = Path(order.folder)
        init = write_tensors(folder / INIT, flatten(self._task.init)[1])
        state = write_tensors(folder / STATE, self._model.initial)
        self._expected = {}
        self._strict.begin()
        plain = self._task.draw(order.seed)
        tensors = flatten(plain)[1]
        shapes, sizes = [tensor.shape for tensor in tensors], [tensor.element_size() for tensor in tensors]
        extents = Extents(shapes, sizes)
        cases, dropped = self._cases(order, plain, extents)
        if extents.shared and all(case.given for case in cases):
            # What two inputs share may mean another thing in each, as in a product of square matrices.
            cases, more = self._cases(order, plain, Extents(shapes, sizes, alone=True))
            dropped += more
        return DeepPrepared(init=init, state=state, cases=cases, dropped=dropped)

    def _cases(self, order: DeepPrepare, plain: Inputs, extents: Extents) -> tuple[list[ShapeCase], list[str]]:
        """The forms that the reference takes, their inputs in files, and those that it does not."""
        tensors = flatten(plain)[1]
        floating = bool(tensors) and all(tensor.is_floating_point() for tensor in tensors)
        forms = extents.others(order.largest_bytes, last=floating and not any(self._model.parameters))
        if extents.leading:
            small = extents.small(order.small_elements)
            forms = [Resize(label="small", leading=small, members=extents.members), *forms]
            if small < extents.leading and extents.bytes_at(extents.leading) <= order.largest_bytes:
                forms.append(Resize(label="as given", leading=extents.leading, members=extents.members))
        more = self._task.draw(order.seed + 1) if any(form.leading > extents.leading for form in forms) else None
        cases: list[ShapeCase] = []
        dropped: list[str] = []
        for number, form in enumerate(forms):
            inputs = resized(plain, more, form)
            reason = self._expect(form.label, inputs)
            if reason:
                dropped.append(f"{form.label}: {reason}")
                continue
            tree, values = flatten(inputs)
            file = f"inputs-{number}.bin"
            cases.append(
                ShapeCase(
                    label=form.label,
                    inputs=tree,
                    tensors=write_tensors(Path(order.folder) / file, values),
                    file=file,
                    given=form.leading == extents.leading and form.last is None,
                    small=form.label == "small",
                )
            )
        return cases, dropped

    def _expect(self, label: str, inputs: Inputs) -> str:
        """Keeps the reference's outputs for these inputs, or says why there are none."""
        model = self._model
        try:
            expected = self._forward(inputs)
            flags.set_declared(self._precision)
            declared = self._forward(inputs)
        except TaskError as error:
            return f"the reference does not take it ({error.message[:200]})"
        finally:
            flags.set_judging()
        if model.finite and not verify.all_finite(expected):
            return "the reference is not finite on it"
        self._expected[label] = model.output_tree, Situation(inputs, model.initial, expected, declared)
        return ""

    def _forward(self, inputs: Inputs) -> list[torch.Tensor]:
        model = self._model
        model.restore(model.initial)
        try:
            return [tensor.clone() for tensor in model.forward(inputs)[0]]
        finally:
            model.restore(model.initial)

    def judge(self, order: DeepJudge) -> DeepJudged:
        """Compares the outputs in a file, which a hostile process wrote, as the strict protocol does."""
        if order.label not in self._expected:
            return DeepJudged(passed=False, detail=f"no case {order.label!r} was asked for")
        tree, situation = self._expected.pop(order.label)  # judged once; its tensors are freed
        mismatch = verify.compare_tree(order.outputs, order.tensors, tree, situation.expected)
        if mismatch:
            return DeepJudged(passed=False, detail=mismatch)
        try:
            actual = read_tensors(Path(order.file), order.tensors, self._device, OUTPUT_LIMIT)
        except (BadFile, OSError) as error:
            return DeepJudged(passed=False, detail=f"its outputs cannot be read: {error}")
        with verify.one_thread():
            findings = self._strict.judge(actual, situation, exact=False)
        wrong = next((finding for finding in findings if not finding.passed), None)
        return DeepJudged(passed=wrong is None, detail=wrong.detail if wrong is not None else "")


def resized(plain: Inputs, more: Inputs | None, form: Resize) -> Inputs:
    """The inputs of a form, made of the first draw's values and, where it is longer, the second one's.

    Raises TaskError when the two draws cannot be joined.
    """
    tree, tensors = flatten(plain)
    others = flatten(more)[1] if more is not None else tensors
    made = [
        _resize(tensor, other, form, index) for index, (tensor, other) in enumerate(zip(tensors, others, strict=True))
    ]
    value = unflatten(tree, made)
    assert isinstance(value, list | dict)
    return value


def _resize(tensor: torch.Tensor, other: torch.Tensor, form: Resize, index: int) -> torch.Tensor:
    import torch

    if index in form.members:
        if form.leading > tensor.shape[0]:
            tensor = torch.cat([tensor, other[: form.leading - tensor.shape[0]]])
        tensor = tensor[: form.leading]
    if form.last is not None and index in form.last_members:
        tensor = tensor[..., : form.last]
    return tensor.contiguous().clone()
