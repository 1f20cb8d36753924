"""What the parts share: the options of a bench, and one kernel from source to verdict under a stopwatch."""

from __future__ import annotations

import argparse
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.evaluator.files import Backend
from benchmarks.evaluator.shrinking import place_task
from benchmarks.evaluator.tasks import honest_kernel, task_file

if TYPE_CHECKING:
    from htam_agent.evaluation.bench import Bench
    from htam_agent.verdict import RunResult


def add_options(parser: argparse.ArgumentParser, *, tasks: bool = True) -> None:
    """The options of every part."""
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each item; goes on where it ended")
    parser.add_argument("--earlier", type=Path, nargs="*", default=[], help="results of an earlier slice, copied first")
    parser.add_argument("--budget-seconds", type=float, default=500.0)
    parser.add_argument("--backend", choices=["cuda", "cpp"], default="cuda")
    parser.add_argument("--work", type=Path, default=Path("htam-runs/evaluator-benchmark"))
    if tasks:
        parser.add_argument(
            "--kernelbench", type=Path, required=True, help="checkout of ScalingIntelligence/KernelBench"
        )
        parser.add_argument("--largest", type=int, help="cut the tasks' sizes down to this, for a small machine")


def prepare(arguments: argparse.Namespace, name: str) -> tuple[Path, Path]:
    """The files of a KernelBench task and of an honest kernel for it, written if they are not there."""
    path = place_task(task_file(arguments.kernelbench, name), arguments.work / "tasks", arguments.largest)
    kernel = arguments.work / "kernels" / f"{arguments.backend}-{path.stem}-{arguments.largest or 'full'}.py"
    if not kernel.exists():
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_text(honest_kernel(path, name, arguments.backend), encoding="utf-8")
    return path, kernel


def open_bench(path: Path, backend: Backend, folder: Path, *, compiled: bool | None = None) -> Bench:
    """A bench with the defaults of `htam evaluate` (strict decides, every protocol answers), not yet open."""
    from htam_agent.evaluation.bench import Bench
    from htam_agent.evaluation.judge import PROTOCOLS
    from htam_agent.task import Task

    return Bench(
        Task.parse(str(path)),
        backend=backend,
        protocols=PROTOCOLS,
        folder=folder / uuid.uuid4().hex[:12],
        compile_baseline=compiled,
    )


def changed(kernel: Path, folder: Path, *, build: bool) -> Path:
    """A copy with another text: with `build` in the device code too, so that no build of before serves."""
    text = kernel.read_text(encoding="utf-8")
    token = uuid.uuid4().hex
    text += f"# {token}\n"
    if build:
        for name in ("CUDA_SRC", "CPP_SRC"):
            text = text.replace(f'{name} = r"""', f'{name} = r"""// {token}\n', 1)
            text = text.replace(f'{name} = """', f'{name} = """// {token}\n', 1)
    path = folder / f"{kernel.stem}-{token[:8]}.py"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def evaluate(bench: Bench, kernel: Path, *, timing: bool = True) -> tuple[RunResult, float, bool]:
    """The result, the seconds from source to verdict, and whether the build came from the cache."""
    began = time.monotonic()
    compiled = bench.compile(kernel)
    result = bench.run(compiled, timing=timing)
    return result, time.monotonic() - began, compiled.cached


def facts_of(result: RunResult) -> dict[str, object]:
    """What is kept of a result."""
    dumped = result.model_dump(exclude={"checks", "launches", "confinement"})
    kept = ("verdict", "stage", "reason", "speedup", "interval", "faster", "times_ms", "stages", "protocols")
    later = ("call_ms", "device_ms", "launch_bound", "own_share")
    return {name: dumped[name] for name in (*kept, *later) if name in dumped}
