"""What an open bench hands to its parts: limits, processes and facts, in one place."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from htam_agent.backends.base import Backend
from htam_agent.errors import SettingsError
from htam_agent.evaluation.confinement import LAYERS, Cell
from htam_agent.evaluation.judge import Reference
from htam_agent.evaluation.messages import Loaded
from htam_agent.evaluation.process import Harness
from htam_agent.evaluation.visible import Visible
from htam_agent.words import Policy, Precision, Protocol, Record

if TYPE_CHECKING:
    from htam_agent.evaluation.hangs import HangMemory
    from htam_agent.evaluation.spares import Spares


class Limits(Record):
    """What one candidate may take at most.

    `memory_bytes`: address space beyond what a fresh worker maps (cpp only; CUDA reserves terabytes of addresses and is
    bounded by the device). `output_bytes`: largest file that it may write, its log included; `disk_bytes`: all files
    together, which lie in memory. `processes`: threads included; root's own are not counted.
    """

    build_seconds: float = Field(60.0, gt=0)
    load_seconds: float = Field(60.0, gt=0)
    run_seconds: float = Field(60.0, gt=0)
    total_seconds: float = Field(300.0, gt=0)
    memory_bytes: int = Field(16 << 30, gt=0)
    output_bytes: int = Field(256 << 20, gt=0)
    disk_bytes: int = Field(1 << 30, gt=0)
    processes: int = Field(512, gt=0)


class Seeds:
    """A stream of seeds that nobody can foretell without the first one."""

    def __init__(self, first: int | None) -> None:
        self._first = int.from_bytes(os.urandom(16), "little") if first is None else first
        self._count = 0

    def draw(self) -> int:
        """The next seed, 0 to 2^56."""
        self._count += 1
        digest = hashlib.sha256(f"{self._first}:{self._count}".encode()).digest()
        return int.from_bytes(digest[:7], "little")


@dataclass(frozen=True)
class Session:
    """An open bench's processes and choices. `index`: the CUDA device among those that this process sees;
    `device_name`: what its workers call it.

    `protocol` decides, `protocols` are all that get a verdict. `descriptors`: the shared buffers' (inputs, state,
    outputs). `warm_l2`: on CUDA, data stay in the L2 from one timed call to the next.
    """

    backend: Backend
    device_name: str
    index: int
    precision: Precision
    protocol: Protocol
    protocols: Sequence[Protocol]
    policy: Policy
    limits: Limits
    folder: Path
    harness: Harness
    reference: Reference
    loaded: Loaded
    descriptors: Sequence[int]
    seeds: Seeds
    spares: Spares
    warm_l2: bool = False

    visible: Visible = field(default_factory=Visible)
    """What the workers see of this machine's GPUs."""
    hangs: HangMemory | None = None
    """None: none is remembered."""

    @property
    def lock(self) -> str:
        """The name of the lock of its device (timing.device_lock)."""
        return "cpu" if self.device_name == "cpu" else f"cuda:{self.index}"

    def quiet(self) -> None:
        """Waits until no spare process starts any more, so that something may be timed."""
        with self.reference.stages.stage("wait for quiet"):
            self.spares.settle()

    def log(self, folder: Path, kind: str) -> Path:
        """An empty log of the candidate in `folder`, where the candidate itself cannot reach it by name."""
        path = self.folder / "logs" / f"{folder.name}.{kind}.log"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        return path

    def cell(self, folder: Path, seconds: float, kernels: Path | None = None) -> Cell:
        """The confinement of a process that works in `folder` for at most `seconds`; `kernels`, where its file and its
        binary lie, it may only read. With `kernels` the folder is a private one of `disk_bytes`, gone with the process;
        without, what the process writes there stays."""
        threads = self.loaded.blueprint.threads
        shared = self.loaded.blueprint.input_bytes + self.loaded.blueprint.output_bytes
        return Cell(
            folder=str(folder.resolve()),
            cuda=self.backend.name == "cuda",
            environment=environment_in(folder, kernels or folder) | {"CUDA_VISIBLE_DEVICES": self.visible.names},
            gpu_files=list(self.visible.files),
            gpu_missing=self.visible.missing,
            readable=[*_library_folders(), *([str(kernels.resolve())] if kernels else [])],
            off=list(confinement_off()),
            cpu_seconds=int(seconds * (threads + 1)) + 60,
            file_bytes=self.limits.output_bytes,
            processes=self.limits.processes,
            room=self.limits.disk_bytes if kernels else 0,
            # The shared buffers and three outputs of the task's own size are no fault of the candidate.
            memory_bytes=self.limits.memory_bytes + 4 * shared,
        )


def confinement_off() -> tuple[str, ...]:
    """The layers that HTAM_CONFINEMENT_OFF names, separated by commas. Raises SettingsError for an unknown one."""
    names = tuple(filter(None, (name.strip() for name in os.environ.get("HTAM_CONFINEMENT_OFF", "").split(","))))
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        raise SettingsError(
            f"HTAM_CONFINEMENT_OFF names {unknown[0]!r}, which is no layer of confinement.",
            f"Name some of: {', '.join(LAYERS)}.",
            "confinement-off",
        )
    return names


def _library_folders() -> list[str]:
    """Where the environment says that CUDA and shared libraries lie."""
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")]
    folders = [folder for value in named for folder in value.split(os.pathsep)]
    return [folder for folder in dict.fromkeys(folders) if Path(folder).is_absolute() and folder != os.sep]


def environment_in(folder: Path, kernels: Path) -> dict[str, str]:
    """The whole environment of a confined process: paths, and every cache inside its own folder."""
    home = folder.resolve()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    passed = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER")
    inside = {
        "HOME": home,
        "TMPDIR": home,
        "XDG_CACHE_HOME": home,
        "HTAM_KERNEL_DIR": kernels.resolve(),
        "TORCH_EXTENSIONS_DIR": home / "extensions",
        "TRITON_CACHE_DIR": home / "triton",
        "TORCHINDUCTOR_CACHE_DIR": home / "inductor",
        "CUDA_CACHE_PATH": home / "cuda",
    }
    # Kineto, by which operators are recorded, writes lines of its own into what the candidate prints.
    fixed = {
        "PATH": path,
        "LC_ALL": "C.UTF-8",
        "KINETO_LOG_LEVEL": "99",
        "USER": "candidate",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {
        **{name: os.environ[name] for name in passed if name in os.environ},
        **{name: str(value) for name, value in inside.items()},
        **fixed,
    }
