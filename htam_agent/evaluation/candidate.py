"""The candidate worker: confines itself, then runs one hostile file. What it answers is evidence, never a verdict."""

from __future__ import annotations

import ctypes
import functools
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.evaluation import flags
from htam_agent.evaluation.auditing import Audit
from htam_agent.evaluation.buffers import SharedBuffer, open_buffer
from htam_agent.evaluation.channel import Channel, Closed
from htam_agent.evaluation.conditions import timed_conditions
from htam_agent.evaluation.confinement import confine
from htam_agent.evaluation.kernel_times import kernels_timed
from htam_agent.evaluation.launch_counting import counted
from htam_agent.evaluation.loading import Inputs, call, first_line, is_out_of_memory, working_dtype
from htam_agent.evaluation.messages import Answer, Enter, Measure, Order, Regime, Trial
from htam_agent.evaluation.ordering import call_late
from htam_agent.evaluation.poison import poison
from htam_agent.evaluation.repeating import Repeater
from htam_agent.evaluation.state import StateMismatch, match_state
from htam_agent.evaluation.trees import UnsupportedValue, extent_of, flat_span, flatten, specs_of, unflatten, view
from htam_agent.evaluation.watching import namespaces, observed
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
            if order.ping:
                return Answer(ok=True)
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
            return self._hand_over_kept(order)
        except (Refused, StateMismatch, UnsupportedValue) as error:
            return Answer(ok=False, reason=str(error)[:2000])
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt too: the file's code raised it
            return Answer(ok=False, reason=self._explain(error), evidence=_trace(error))

    def _explain(self, error: BaseException) -> str:
        memory = ""
        if is_out_of_memory(error):
            memory = ("task too large: " if self._task_fills_device() else "") + "out of memory: "
        place = ""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self._file:
                place = f" (line {frame.lineno}: {(frame.line or '').strip()[:200]})"
        return f"{memory}{type(error).__name__}: {first_line(error)}{place}"

    def _task_fills_device(self) -> bool:
        """Whether the device lacks room for two outputs though this process holds no more than the task is large: then
        no kernel could run it. A processor's memory is asked for when the task is laid out."""
        import torch

        if self._plan.device == "cpu":
            return False
        try:
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info()
        except RuntimeError:  # the context is lost: nothing more can be said
            return False
        size = self._plan.input_bytes + self._plan.state_bytes + self._plan.output_bytes
        return free < 2 * self._plan.output_bytes and torch.cuda.memory_allocated() <= size

    def _enter(self, order: Enter, descriptors: Sequence[int]) -> Answer:
        import torch

        self._file = order.file
        self._plan = order.blueprint
        active, missing = confine(order.cell)
        torch.set_num_threads(order.blueprint.threads)
        flags.set_defaults()  # what the file makes of them is left for the protocols that ask for it
        device = order.blueprint.device
        self._buffers: list[SharedBuffer] = [
            open_buffer(device, descriptor, size)
            for descriptor, size in zip(descriptors, order.buffer_sizes, strict=True)
        ]
        self._repeater = Repeater(device)
        self._stopwatch = self._repeater.stopwatch
        return Answer(ok=True, active=active, missing=missing, clock=self._stopwatch.missing)

    def _import(self) -> Answer:
        self._known = namespaces()
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
        self._left_flags = flags.read_tf32()
        flags.set_declared(self._plan.precision)
        return Answer(ok=True, reason=names)

    def _trial(self, order: Trial) -> Answer:
        import torch

        if order.load_state:
            self._load_state()
        poison(self._plan.output_bytes, self._plan.device)
        self._stopwatch.synchronize()
        self._set_flags(order.regime)
        inputs = self._inputs(order.shift, order.slot)
        run = functools.partial(call, self._model, inputs)
        with (
            torch.no_grad(),
            counted(Path(self._file).parent, order.launch_mode) as counting,
            kernels_timed(order.kernels, self._plan.device) as kernels,
            observed(order.watch, order.record) as ran,
        ):
            outputs = call_late(run, flatten(inputs)[1], self._stopwatch.occupy) if order.ordered else run()
        if not order.ordered:  # else the outputs are taken from the current stream, as whoever calls it would
            self._stopwatch.synchronize()
        answer = self._hand_over(outputs)
        self._dump_state()
        recorded = getattr(self._module, "LAUNCHES", None)
        return answer.model_copy(
            update={
                "operators": ran.operators,
                "recorded": ran.recorded,
                "kernels": kernels,
                "launch_counts": counting.counts,
                "own_namespaces": sorted(namespaces() - self._known) if order.watch or order.record else [],
                "launches": _launches(recorded),
                "unlaunched": isinstance(recorded, list) and not recorded,
            }
        )

    def _measure(self, order: Measure) -> Answer:
        calls = [functools.partial(call, self._model, self._inputs(0, slot)) for slot in range(order.slots)]
        with timed_conditions(lambda: self._set_flags(order.regime)):
            if order.warm_seconds > 0:
                return Answer(ok=True, milliseconds=[self._stopwatch.warm(calls, order.warm_seconds)])
            if order.alone:
                self._load_state()
            taken = self._repeater.repeat(order, calls, alone=order.alone)
        return Answer(
            ok=True,
            reason=taken.reason,
            milliseconds=taken.milliseconds,
            first_ms=taken.first_ms,
            hidden_ms=taken.hidden_ms,
        )

    def _set_flags(self, regime: Regime) -> None:
        """TF32 as the regime has it: as the file left it, or as the declared precision allows it to everybody."""
        if regime == "defaults":
            flags.set_tf32(*self._left_flags)
        else:
            flags.set_declared(self._plan.precision)

    def _hand_over_kept(self, order: Order) -> Answer:
        """The outputs of the last timed call on one set of inputs; all are then freed, unless they are to be kept."""
        answer = self._hand_over(self._repeater.kept(order.kept))
        if order.state:
            self._dump_state()
        if not order.keep:
            self._repeater.forget()
        return answer

    def _inputs(self, shift: int, slot: int = 0) -> Inputs:
        memory, place = self._buffers[0].memory, shift + slot * self._plan.slot_bytes
        value = unflatten(self._plan.inputs, [view(memory, spec, place) for spec in self._plan.input_tensors])
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
                _copy(view(self._buffers[2].memory, spec), tensor)
        self._stopwatch.synchronize()
        return Answer(ok=True, outputs=tree, tensors=specs)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies one contiguous tensor to another of the same form. On a processor by this thread alone: a team of threads
    waits for each other where others use the processor too, which would look like work that was put off."""
    if source.device.type == "cpu" and source.numel():
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
    else:
        target.copy_(source)


def _like(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The tensor in the target's dtype and strides, so that their memory can be copied flat."""
    if tensor.dtype == target.dtype and tensor.stride() == target.stride():
        return tensor
    import torch

    other = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype, device=target.device)
    return other.copy_(tensor)


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def warm_up() -> None:
    """Makes torch import what a candidate's first calls need (some 0.8 s): in the zygote, once."""
    import torch

    with observed(True, False), torch.no_grad(), torch.device("cpu"):
        flatten(torch.nn.Linear(1, 1).weight.detach().clone())


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
