"""The closed vocabularies that every part shares (docs: contract words)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Backend = Literal["cuda", "cpp"]
"""Where a kernel runs: `cuda` (NVRTC, an NVIDIA GPU) or `cpp` (g++ with OpenMP)."""

Precision = Literal["ieee", "tf32", "fp16", "bf16"]
Protocol = Literal["kernelbench", "verified", "verified-fair", "strict"]
Policy = Literal["own-kernels-only", "library-allowed"]
Verdict = Literal["correct", "wrong", "failed", "quarantined"]
StepVerdict = Literal["correct", "wrong", "failed", "quarantined", "at-floor"]
Stage = Literal["load", "policy", "compile", "construct", "run", "verify", "time"]
Bottleneck = Literal["memory", "compute", "latency", "launch", "unknown"]
Pause = Literal["direction", "code"]
"""Where a run waits for its user's yes: before a direction is taken, before a step's code is built and run."""
Director = Literal["score", "model"]
Judge = Literal["local", "external"]
"""Who judges candidates: this machine, or another one, whose verdicts the run waits for."""
DType = Literal[
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "other"
]


class Record(BaseModel):
    """Base of frozen data records: unknown fields are an error, so that a typo is never silently dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)
