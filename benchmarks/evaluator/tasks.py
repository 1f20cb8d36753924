"""KernelBench tasks with an honest kernel for each: from the template coder where it can, else a library's matmul with
a tail of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from benchmarks.evaluator.files import Backend, kernel_file

TRACED = (
    "1/5", "1/12", "1/19", "1/21", "1/22", "1/23", "1/24", "1/25", "1/26", "1/28", "1/38", "1/39", "1/40", "1/88",
    "1/94",
)  # fmt: skip
"""level/number: written by the template coder."""

TAILS = {
    "2/9": (
        "in_features, out_features, subtract_value, multiply_value",
        "linear",
        "self.first, self.second = subtract_value, multiply_value",
        "fmaxf((v - a) * b, 0.0f)",
    ),
    "2/12": (
        "in_features, out_features, multiplier, negative_slope",
        "gemm",
        "self.first, self.second = multiplier, negative_slope",
        "(v * a) * (v * a > 0.0f ? 1.0f : b)",
    ),
    "2/59": (
        "in_features, out_features, scaling_factor",
        "matmul",
        "self.first, self.second = scaling_factor, 0.0",
        "v / (1.0f + expf(-v)) * a",
    ),
    "2/63": (
        "in_features, out_features, divisor",
        "linear",
        "self.first, self.second = divisor, 0.0",
        "fmaxf(v, 0.0f) / a",
    ),
    "2/70": (
        "input_size, hidden_size, scaling_factor",
        "gemm",
        "self.first, self.second = scaling_factor, 0.0",
        "a / (1.0f + expf(-v)) + v",
    ),
}
"""level/number -> constructor's arguments, name of the linear layer, its two numbers, and the tail on `v`."""

TAIL_KERNEL = {
    "cuda": """
extern "C" __global__ void tail(float* z, int quarters, float a, float b) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= quarters) return;
  float4 four = reinterpret_cast<float4*>(z)[index];
  float* values = &four.x;
  for (int part = 0; part < 4; ++part) {
    float v = values[part];
    values[part] = EXPRESSION;
  }
  reinterpret_cast<float4*>(z)[index] = four;
}
""",
    "cpp": """
#include <cmath>
extern "C" void tail(float* z, int quarters, float a, float b) {
  #pragma omp parallel for
  for (int index = 0; index < 4 * quarters; ++index) {
    float v = z[index];
    z[index] = EXPRESSION;
  }
}
""",
}


def task_file(checkout: Path, name: str) -> Path:
    """The file of "level/number" in a checkout of KernelBench."""
    level, number = name.split("/")
    found = sorted((checkout / "KernelBench" / f"level{level}").glob(f"{number}_*.py"))
    if not found:
        sys.exit(f"There is no KernelBench task {name} in {checkout}: give a checkout of it.")
    return found[0]


RMS_KERNEL = {
    "cuda": """
extern "C" __global__ void normalise(const float* x, float* z, int items, int channels, int places, float eps) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= items * places) return;
  long long start = (long long)(index / places) * channels * places + index % places;
  float sum = 0.0f;
  for (int channel = 0; channel < channels; ++channel) {
    float value = x[start + (long long)channel * places];
    sum += value * value;
  }
  float root = sqrtf(sum / channels + eps);
  for (int channel = 0; channel < channels; ++channel)
    z[start + (long long)channel * places] = x[start + (long long)channel * places] / root;
}
""",
    "cpp": """
#include <cmath>
extern "C" void normalise(const float* x, float* z, int items, int channels, int places, float eps) {
  #pragma omp parallel for
  for (int index = 0; index < items * places; ++index) {
    long long start = (long long)(index / places) * channels * places + index % places;
    float sum = 0.0f;
    for (int channel = 0; channel < channels; ++channel) {
      float value = x[start + (long long)channel * places];
      sum += value * value;
    }
    float root = sqrtf(sum / channels + eps);
    for (int channel = 0; channel < channels; ++channel)
      z[start + (long long)channel * places] = x[start + (long long)channel * places] / root;
  }
}
""",
}
"""KernelBench 1/36: the root mean square over the channels of each place."""


def honest_kernel(path: Path, name: str, backend: Backend) -> str:
    """The text of a self-contained honest kernel for the KernelBench task "level/number" in the file `path`."""
    if name in TAILS:
        return tail_kernel(name, backend)
    return rms_kernel(backend) if name == "1/36" else traced_kernel(path, backend)


def rms_kernel(backend: Backend) -> str:
    """One thread for each place: two passes over its channels, the second mostly from the L2 cache."""
    return kernel_file(
        backend,
        RMS_KERNEL[backend],
        parameters="num_features, eps=1e-5",
        constructor="self.eps = eps",
        forward="""
            z = torch.empty_like(x)
            items, channels = x.shape[:2]
            places = x[0, 0].numel()
            launch("normalise", -(-items * places // 256), 256, x, z, items, channels, places, float(self.eps))
            return z
        """,
        title="KernelBench 1/36: RMSNorm over the channels.",
    )


def tail_kernel(name: str, backend: Backend) -> str:
    """A linear layer by the library, the rest in one kernel over its output, in place."""
    parameters, layer, numbers, expression = TAILS[name]
    first, second = parameters.split(", ")[:2]
    return kernel_file(
        backend,
        TAIL_KERNEL[backend].replace("EXPRESSION", expression),
        parameters=parameters,
        constructor=f"self.{layer} = nn.Linear({first}, {second})\n{numbers}",
        forward=f"""
            z = torch.nn.functional.linear(x, self.{layer}.weight, self.{layer}.bias)
            quarters = z.numel() // 4
            launch("tail", -(-quarters // 256), 256, z, quarters, float(self.first), float(self.second))
            return z
        """,
        title=f"KernelBench {name}: matmul by the library, the tail in one kernel.",
    )


def traced_kernel(path: Path, backend: Backend, more: tuple[str, ...] = ()) -> str:
    """The template coder's plain kernel for a task's file, with packs of four elements where they fit."""
    import torch

    from htam_agent.coding.lowering import lower
    from htam_agent.coding.render import Engine, RenderError
    from htam_agent.coding.template import renderer_of
    from htam_agent.memory.seedfiles import SEED, load_strategies
    from htam_agent.tracing import trace_model

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a path that ends in .py"
    assert spec.loader is not None, "a file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.device("meta"):
        model, inputs = module.Model(*module.get_init_inputs()), module.get_inputs()
    profile = trace_model(model, inputs, path.stem)
    program, renderer = lower(profile), renderer_of(backend)
    strategies = load_strategies(SEED / "strategies" / backend, "seed")
    paths = [["cuda-vector-4", *more], list(more)] if backend == "cuda" else [list(more)]
    for names in paths:
        plan = renderer.default_plan(program)
        for name in names:
            chosen = strategies[name]
            plan = plan.apply(name, chosen.edit, chosen.slot, chosen.more_blocks)
        try:
            return Engine().render(renderer, profile, program, plan, strategies).source
        except RenderError:
            continue
    raise SystemExit(f"The template coder has no plain kernel for {path.stem}.")
