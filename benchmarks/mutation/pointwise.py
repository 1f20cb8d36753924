"""Correct kernels that compute every element from its own inputs."""

from __future__ import annotations

from benchmarks.mutation.small_operator import OTHER_WIDE, WIDE, Operator

CUDA = """
extern "C" __global__ void kernel(ARGUMENTS, float* z, int total, int columns) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < total) {
    int column = index % columns;
BODY
  }
}
"""
CPP = """
#include <cmath>
extern "C" void kernel(ARGUMENTS, float* z, int total, int columns) {
  for (int index = 0; index < total; ++index) {
    int column = index % columns;
BODY
  }
}
"""


def pointwise(
    name: str,
    expression: str,
    body: str,
    *,
    inputs: tuple[str, ...] = ("x",),
    parameters: tuple[str, ...] = (),
    zeros: tuple[str, ...] = (),
    unit: tuple[str, ...] = (),
) -> Operator:
    """An operator over rows x columns; its parameters are one value for each column."""
    arguments = ", ".join(f"const float* {item}" for item in (*inputs, *parameters))
    handed = ", ".join([*inputs, *(f"self.{item}" for item in parameters)])
    lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
    if "column]" not in body:
        unused = "    int column = index % columns;\n"
        cuda, cpp = CUDA.replace(unused, ""), CPP.replace(unused, "")
    else:
        cuda, cpp = CUDA, CPP
    return Operator(
        name=name,
        sizes=WIDE,
        more_sizes=OTHER_WIDE,
        inputs=dict.fromkeys(inputs, "rows, columns"),
        parameters=dict.fromkeys(parameters, "columns"),
        zeros=zeros,
        unit=unit,
        expression=f"return {expression}",
        forward=f"""
            z = torch.empty_like(x)
            launch("kernel", -(-x.numel() // 256), 256, {handed}, z, x.numel(), x.shape[1])
            return z
        """,
        cuda=cuda.replace("ARGUMENTS", arguments).replace("BODY", lines),
        cpp=cpp.replace("ARGUMENTS", arguments).replace("BODY", lines),
    )


POINTWISE = [
    pointwise(
        "affine-relu",
        "torch.relu(x * self.weight + self.bias)",
        """
        float value = x[index] * weight[column] + bias[column];
        z[index] = value > 0.0f ? value : 0.0f;
        """,
        parameters=("weight", "bias"),
        zeros=("bias",),
    ),
    pointwise(
        "leaky-scaled",
        "F.leaky_relu((x - 0.75) * 1.5, 0.1)",
        """
        float value = (x[index] - 0.75f) * 1.5f;
        z[index] = value > 0.0f ? value : 0.1f * value;
        """,
    ),
    pointwise(
        "gelu-tanh",
        "F.gelu(x, approximate='tanh')",
        """
        float value = x[index];
        float inner = 0.7978845608f * (value + 0.044715f * value * value * value);
        z[index] = 0.5f * value * (1.0f + tanhf(inner));
        """,
    ),
    pointwise(
        "swish-residual",
        "x * torch.sigmoid(x) * self.weight + y",
        """
        float value = x[index];
        float gate = 1.0f / (1.0f + expf(-value));
        z[index] = value * gate * weight[column] + y[index];
        """,
        inputs=("x", "y"),
        parameters=("weight",),
    ),
    pointwise(
        "hard-swish",
        "F.hardswish(x)",
        """
        float value = x[index];
        float gate = fminf(fmaxf(value + 3.0f, 0.0f), 6.0f);
        z[index] = value * gate / 6.0f;
        """,
    ),
    pointwise(
        "softplus",
        "F.softplus(x, beta=2.0)",
        """
        float value = x[index] * 2.0f;
        z[index] = value > 20.0f ? x[index] : log1pf(expf(value)) / 2.0f;
        """,
    ),
    pointwise(
        "clamp-product",
        "torch.clamp(x * 1.5 + 0.25, -1.0, 1.0) * y",
        """
        float value = x[index] * 1.5f + 0.25f;
        value = fminf(fmaxf(value, -1.0f), 1.0f);
        z[index] = value * y[index];
        """,
        inputs=("x", "y"),
    ),
    pointwise(
        "blend",
        "x + share * (y - x)",
        """
        float gap = y[index] - x[index];
        z[index] = x[index] + share[index] * gap;
        """,
        inputs=("x", "y", "share"),
        unit=("share",),
    ),
    pointwise(
        "smooth-l1",
        "F.smooth_l1_loss(x, y, reduction='none') * self.weight",
        """
        float gap = fabsf(x[index] - y[index]);
        float loss = gap < 1.0f ? 0.5f * gap * gap : gap - 0.5f;
        z[index] = loss * weight[column];
        """,
        inputs=("x", "y"),
        parameters=("weight",),
    ),
    pointwise(
        "elu-shifted",
        "F.elu(x, alpha=1.5) + self.bias",
        """
        float value = x[index];
        float curve = value > 0.0f ? value : 1.5f * (expf(value) - 1.0f);
        z[index] = curve + bias[column];
        """,
        parameters=("bias",),
        zeros=("bias",),
    ),
]
