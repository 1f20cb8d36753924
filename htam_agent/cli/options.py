"""Options that several commands share, as annotated types; None means: not given, so that settings decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BackendOption = Annotated[str | None, typer.Option("--backend", help="cuda, cpp or auto.")]
PrecisionOption = Annotated[str | None, typer.Option("--precision", help="ieee, tf32, fp16 or bf16.")]
ProtocolOption = Annotated[
    str | None, typer.Option("--protocol", help="kernelbench, verified, verified-fair or strict: which one decides.")
]
PolicyOption = Annotated[str | None, typer.Option("--policy", help="own-kernels-only or library-allowed.")]
CompileBaselineOption = Annotated[
    bool | None,
    typer.Option("--compile-baseline/--no-compile-baseline", help="Measure torch.compile (default: on cuda only)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The last line of stdout is one JSON object.")]
LogFormatOption = Annotated[str | None, typer.Option("--log-format", help="Logs on stderr as console or json.")]
MemoryOption = Annotated[Path | None, typer.Option("--memory", help="The memory store's folder.")]
