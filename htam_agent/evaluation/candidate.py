"""The candidate worker: confines itself, then runs one hostile file. What it answers is evidence, never a verdict."""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.evaluation import flags
from htam_agent.evaluation.auditing import Audit
from htam_agent.evaluation.buffers import SharedBuffer, open_buffer
from htam_agent.evaluation.channel import Channel, Closed
from htam_agent.evaluation.confinement import confine
from htam_agent.evaluation.loading import Inputs, call, first_line, is_out_of_memory, working_dtype
from htam_agent.evaluation.messages import Answer, Enter, Measure, Order, Trial
from htam_agent.evaluation.state import StateMismatch, match_state
from htam_agent.evaluation.timing import Stopwatch
from htam_agent.evaluation.trees import UnsupportedValue, extent_of, flat_span, flatten, specs_of, unflatten, view
from htam_agent.verdict import Launch

if TYPE_CHECKING:
    import torch
    from torch import nn

MODULE = "htam_candidate"
EVIDENCE_LIMIT = 4000
LAUNCHES_LIMIT = 64


def serve_candidate(channel: Channel) -> None:
    """Answers orders until the main process hangs up."""
    candidate = Candidate()
    while True:
        try:
            order, descriptors = channel.receive_with_descriptors(Order)
        except Closed:
            return
        channel.send(candidate.answer(order, descriptors))


class Refused(Exception):
    """The candidate cannot be used; the message is the reason."""


class Candidate:
    """One file in this process."""

    _audit: Audit | None = None

    def answer(self, order: Order, descriptors: Sequence[int]) -> Answer:
        """Does what is asked; every exception becomes an answer with its type, message and line."""
        try:
            if order.enter is not None:
                return self._enter(order.enter, descriptors)
            if order.imports:
                return self._import()
            if order.instance:
                return self._construct()
            if order.trial is not None:
                return self._trial(order.trial)
            if order.measure is not None:
                return self._measure(order.measure)
            if order.audit:
                self._audit = self._audit or Audit()
                return Answer(ok=True, loaded=self._audit.seen())
            return self._hand_over_last()
        except (Refused, StateMismatch, UnsupportedValue) as error:
            return Answer(ok=False, reason=str(error)[:2000])
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt too: the file's code raised it
            return Answer(ok=False, reason=self._explain(error), evidence=_trace(error))

    def _explain(self, error: BaseException) -> str:
        memory = "out of memory: " if is_out_of_memory(error) else ""
        place = ""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self._file:
                place = f" (line {frame.lineno}: {(frame.line or '').strip()[:200]})"
        return f"{memory}{type(error).__name__}: {first_line(error)}{place}"

    def _enter(self, order: Enter, descriptors: Sequence[int]) -> Answer:
        import torch

        self._file = order.file
        self._plan = order.blueprint
        active, missing = confine(order.cell)
        torch.set_num_threads(order.blueprint.threads)
        flags.set_declared(order.blueprint.precision)
        device = order.blueprint.device
        self._buffers: list[SharedBuffer] = [
            open_buffer(device, descriptor, size)
            for descriptor, size in zip(descriptors, order.buffer_sizes, strict=True)
        ]
        self._stopwatch = Stopwatch(device)
        return Answer(ok=True, active=active, missing=missing)

    def _import(self) -> Answer:
        self._known = _namespaces()
        module = types.ModuleType(MODULE)
        module.__file__ = self._file
        sys.modules[MODULE] = module
        code = compile(Path(self._file).read_text(encoding="utf-8"), self._file, "exec")
        exec(code, module.__dict__)
        self._module = module
        if not isinstance(getattr(module, "ModelNew", None), type):
            raise Refused("the file defines no class ModelNew")
        return Answer(ok=True)

    def _construct(self) -> Answer:
        import torch
        from torch import nn

        state = self._buffers[1].memory
        tensors = [view(state, spec).clone() for spec in self._plan.init_tensors]
        arguments = unflatten(self._plan.init, tensors)
        with torch.device(self._plan.device):
            kind = self._module.ModelNew
            model = kind(**arguments) if isinstance(arguments, dict) else kind(*_as_list(arguments))
        if not isinstance(model, nn.Module):
            raise Refused(f"ModelNew is no nn.Module but a {type(model).__name__}")
        model = model.to(self._plan.device)
        wanted = working_dtype(self._plan.precision)
        if wanted is not None:
            model = model.to(wanted)
        self._model: nn.Module = model.train(self._plan.training)
        self._state, names = match_state(self._model, self._plan.state)
        return Answer(ok=True, reason=names)

    def _trial(self, order: Trial) -> Answer:
        import torch

        if order.load_state:
            self._load_state()
        self._poison()
        inputs = self._inputs(order.shift)
        with torch.no_grad(), _watched(order.watch) as operators:
            outputs = call(self._model, inputs)
        self._stopwatch.synchronize()
        answer = self._hand_over(outputs)
        self._dump_state()
        recorded = getattr(self._module, "LAUNCHES", None)
        return answer.model_copy(
            update={
                "operators": operators[:400],
                "own_namespaces": sorted(_namespaces() - self._known) if order.watch else [],
                "launches": _launches(recorded),
                "unlaunched": isinstance(recorded, list) and not recorded,
            }
        )

    def _measure(self, order: Measure) -> Answer:
        import torch

        inputs = self._inputs(0)
        function: Callable[[], object] = lambda: call(self._model, inputs)  # noqa: E731
        with torch.no_grad():
            if order.warm_seconds > 0:
                return Answer(ok=True, milliseconds=[self._stopwatch.warm(function, order.warm_seconds)])
            if order.alone:
                self._load_state()
            times, outputs = self._stopwatch.block(function, order.calls, alone=order.alone)
        self._last_outputs: object = outputs
        watch = self._stopwatch
        return Answer(ok=True, milliseconds=times, first_ms=watch.first_ms, hidden_ms=watch.hidden_ms)

    def _hand_over_last(self) -> Answer:
        """The outputs of the last timed call, which are then freed: the reference keeps none either."""
        answer = self._hand_over(self._last_outputs)
        self._last_outputs = None
        return answer

    def _inputs(self, shift: int) -> Inputs:
        memory = self._buffers[0].memory
        value = unflatten(self._plan.inputs, [view(memory, spec, shift) for spec in self._plan.input_tensors])
        assert isinstance(value, list | dict)
        return value

    def _load_state(self) -> None:
        import torch

        with torch.no_grad():
            for tensor, entry in zip(self._state, self._plan.state, strict=True):
                if tensor is not None:
                    tensor.copy_(view(self._buffers[1].memory, entry.spec))

    def _dump_state(self) -> None:
        for tensor, entry in zip(self._state, self._plan.state, strict=True):
            if tensor is not None:
                target = view(self._buffers[1].memory, entry.spec)
                flat_span(target).copy_(flat_span(_like(tensor.detach(), target)))
        self._stopwatch.synchronize()

    def _poison(self) -> None:
        """Fills free memory of the outputs' size with NaN patterns: a kernel that relies on zeros is found out."""
        import torch

        torch.full((self._plan.output_bytes,), 255, dtype=torch.uint8, device=self._plan.device)
        self._stopwatch.synchronize()

    def _hand_over(self, outputs: object) -> Answer:
        """Copies the outputs into shared memory, one after the other and contiguous, and says their form."""
        tree, tensors = flatten(outputs, exact=True, path="the output")
        for tensor in tensors:
            if str(tensor.device) != self._plan.device:
                raise Refused(f"the output lies on {tensor.device} where {self._plan.device} is expected")
        packed = [tensor.detach().contiguous() for tensor in tensors]
        specs = specs_of(packed)
        if extent_of(packed) <= self._plan.output_bytes:  # else the form is wrong anyway, and says so
            for tensor, spec in zip(packed, specs, strict=True):
                view(self._buffers[2].memory, spec).copy_(tensor)
        self._stopwatch.synchronize()
        return Answer(ok=True, outputs=tree, tensors=specs)


def _like(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The tensor in the target's dtype and strides, so that their memory can be copied flat."""
    if tensor.dtype == target.dtype and tensor.stride() == target.stride():
        return tensor
    import torch

    other = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype, device=target.device)
    return other.copy_(tensor)


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


@contextmanager
def _watched(watch: bool) -> Iterator[list[str]]:
    """Collects the names of ATen and custom operators that run inside, each once, in order."""
    names: dict[str, None] = {}
    collected: list[str] = []
    if not watch:
        yield collected
        return
    with _watcher(names):
        yield collected
    collected.extend(names)


def _watcher(names: dict[str, None]) -> AbstractContextManager[object]:
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(
        self: object,
        func: torch._ops.OpOverload,
        kinds: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        names[str(func.overloadpacket)] = None
        return func(*args, **(kwargs or {}))

    # torch's mode has no type information: a class statement would be an untyped call in a typed context.
    kind = types.new_class("Watcher", (TorchDispatchMode,), {}, lambda body: body.update(__torch_dispatch__=dispatch))
    watcher: AbstractContextManager[object] = kind()
    return watcher


def warm_up() -> None:
    """Makes torch import what a candidate's first calls need (some 0.8 s): in the zygote, once."""
    import torch

    with _watched(True), torch.no_grad(), torch.device("cpu"):
        flatten(torch.nn.Linear(1, 1).weight.detach().clone())


def _namespaces() -> set[str]:
    """Namespaces of all operators that are registered with torch in this process."""
    import torch

    return {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}


def _launches(recorded: object) -> list[Launch]:
    """What the file's launcher recorded in LAUNCHES, as far as it is well formed."""
    launches = []
    for item in list(recorded)[:LAUNCHES_LIMIT] if isinstance(recorded, list | tuple) else []:
        try:
            kernel, grid, block, shared = item
            launches.append(
                Launch(
                    kernel=str(kernel)[:200],
                    grid=(int(grid[0]), int(grid[1]), int(grid[2])),
                    block=(int(block[0]), int(block[1]), int(block[2])),
                    dynamic_shared_bytes=int(shared),
                )
            )
        except (TypeError, ValueError, IndexError):
            continue
    return launches


def _trace(error: BaseException) -> str:
    """The end of the traceback."""
    return "".join(traceback.format_exception(error))[-EVIDENCE_LIMIT:]
