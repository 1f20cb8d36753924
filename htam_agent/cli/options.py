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
MaxCostOption = Annotated[
    float | None, typer.Option("--max-cost", help="US dollars that the models may cost: the run stops before more.")
]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", help="Tokens that the models may take: the run stops before more.")
]
MaxSecondsOption = Annotated[
    float | None,
    typer.Option("--max-seconds", help="Time after which no new step begins and no answer is waited for."),
]
PricesOption = Annotated[
    Path | None, typer.Option("--prices", help="Your price table (TOML), which wins over the shipped one.")
]
PreflightOption = Annotated[
    bool | None,
    typer.Option("--preflight/--no-preflight", help="Ask each model one short question before any work."),
]
MemoryOption = Annotated[Path | None, typer.Option("--memory", help="The memory store's folder.")]
