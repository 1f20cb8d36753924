"""Correct kernels that reduce every row: one block for a row on CUDA, a loop on C++."""

from __future__ import annotations

from benchmarks.mutation.small_operator import OTHER_WIDE, WIDE, Operator

REDUCE = """
__device__ float block_NAME(float value, float* scratch) {
  int lane = threadIdx.x;
  scratch[lane] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (lane < half) scratch[lane] = COMBINE;
    __syncthreads();
  }
  float total = scratch[0];
  __syncthreads();
  return total;
}
"""
SUM = REDUCE.replace("NAME", "sum").replace("COMBINE", "scratch[lane] + scratch[lane + half]")
MAX = REDUCE.replace("NAME", "max").replace("COMBINE", "fmaxf(scratch[lane], scratch[lane + half])")
CUDA = """
extern "C" __global__ void kernel(ARGUMENTS, OUTPUT* z, int rows, int columns) {
  __shared__ float scratch[256];
  int row = blockIdx.x;
BODY
}
"""
CPP = """
#include <cmath>
extern "C" void kernel(ARGUMENTS, OUTPUT* z, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
BODY
  }
}
"""
LOOP = "for (int column = threadIdx.x; column < columns; column += blockDim.x)"
PLAIN = "for (int column = 0; column < columns; ++column)"


def rowwise(
    name: str,
    expression: str,
    cuda: str,
    cpp: str,
    *,
    inputs: tuple[str, ...] = ("x",),
    parameters: tuple[str, ...] = (),
    zeros: tuple[str, ...] = (),
    helpers: str = SUM,
    output: str = "torch.empty_like(x)",
    kind: str = "float",
) -> Operator:
    """An operator over rows x columns. In the bodies, LOOP is the loop over a row's columns."""
    arguments = ", ".join(f"const float* {item}" for item in (*inputs, *parameters))
    handed = ", ".join([*inputs, *(f"self.{item}" for item in parameters)])

    def text(frame: str, body: str, loop: str, depth: int) -> str:
        lines = [f"{'  ' * depth}{line.removeprefix('        ')}" for line in body.strip("\n").rstrip().splitlines()]
        filled = frame.replace("BODY", "\n".join(lines)).replace("LOOP", loop)
        return filled.replace("ARGUMENTS", arguments).replace("OUTPUT", kind)

    return Operator(
        name=name,
        sizes=WIDE,
        more_sizes=OTHER_WIDE,
        inputs=dict.fromkeys(inputs, "rows, columns"),
        parameters=dict.fromkeys(parameters, "columns"),
        zeros=zeros,
        expression=f"return {expression}",
        forward=f"""
            z = {output}
            launch("kernel", x.shape[0], 256, {handed}, z, x.shape[0], x.shape[1])
            return z
        """,
        cuda=helpers + text(CUDA, cuda, LOOP, 1),
        cpp=text(CPP, cpp, PLAIN, 2),
    )


ONE_A_ROW = "torch.empty(x.shape[0], device=x.device)"

ROWS = [
    rowwise(
        "softmax",
        "torch.softmax(x, dim=-1)",
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        peak = block_max(peak, scratch);
        float sum = 0.0f;
        LOOP sum += expf(x[row * columns + column] - peak);
        sum = block_sum(sum, scratch);
        LOOP z[row * columns + column] = expf(x[row * columns + column] - peak) / sum;
        """,
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        float sum = 0.0f;
        LOOP {
          float power = expf(x[row * columns + column] - peak);
          z[row * columns + column] = power;
          sum += power;
        }
        LOOP z[row * columns + column] = z[row * columns + column] / sum;
        """,
        helpers=MAX + SUM,
    ),
    rowwise(
        "log-softmax",
        "torch.log_softmax(x, dim=-1)",
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        peak = block_max(peak, scratch);
        float sum = 0.0f;
        LOOP sum += expf(x[row * columns + column] - peak);
        float shift = peak + logf(block_sum(sum, scratch));
        LOOP z[row * columns + column] = x[row * columns + column] - shift;
        """,
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        float sum = 0.0f;
        LOOP sum += expf(x[row * columns + column] - peak);
        float shift = peak + logf(sum);
        LOOP z[row * columns + column] = x[row * columns + column] - shift;
        """,
        helpers=MAX + SUM,
    ),
    rowwise(
        "layer-norm",
        "F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-5)",
        """
        float sum = 0.0f;
        LOOP sum += x[row * columns + column];
        float mean = block_sum(sum, scratch) / columns;
        float square = 0.0f;
        LOOP {
          float gap = x[row * columns + column] - mean;
          square += gap * gap;
        }
        float scale = rsqrtf(block_sum(square, scratch) / columns + 1e-5f);
        LOOP z[row * columns + column] = (x[row * columns + column] - mean) * scale * weight[column] + bias[column];
        """,
        """
        float sum = 0.0f;
        LOOP sum += x[row * columns + column];
        float mean = sum / columns;
        float square = 0.0f;
        LOOP {
          float gap = x[row * columns + column] - mean;
          square += gap * gap;
        }
        float scale = 1.0f / sqrtf(square / columns + 1e-5f);
        LOOP z[row * columns + column] = (x[row * columns + column] - mean) * scale * weight[column] + bias[column];
        """,
        parameters=("weight", "bias"),
        zeros=("bias",),
    ),
    rowwise(
        "rms-norm",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight",
        """
        float square = 0.0f;
        LOOP square += x[row * columns + column] * x[row * columns + column];
        float scale = rsqrtf(block_sum(square, scratch) / columns + 1e-6f);
        LOOP z[row * columns + column] = x[row * columns + column] * scale * weight[column];
        """,
        """
        float square = 0.0f;
        LOOP square += x[row * columns + column] * x[row * columns + column];
        float scale = 1.0f / sqrtf(square / columns + 1e-6f);
        LOOP z[row * columns + column] = x[row * columns + column] * scale * weight[column];
        """,
        parameters=("weight",),
    ),
    rowwise(
        "l2-normalise",
        "F.normalize(x, dim=1)",
        """
        float square = 0.0f;
        LOOP square += x[row * columns + column] * x[row * columns + column];
        float length = fmaxf(sqrtf(block_sum(square, scratch)), 1e-12f);
        LOOP z[row * columns + column] = x[row * columns + column] / length;
        """,
        """
        float square = 0.0f;
        LOOP square += x[row * columns + column] * x[row * columns + column];
        float length = fmaxf(sqrtf(square), 1e-12f);
        LOOP z[row * columns + column] = x[row * columns + column] / length;
        """,
    ),
    rowwise(
        "weighted-row-sum",
        "(x * self.weight).sum(dim=1)",
        """
        float sum = 0.0f;
        LOOP sum += x[row * columns + column] * weight[column];
        sum = block_sum(sum, scratch);
        if (threadIdx.x == 0) z[row] = sum;
        """,
        """
        double sum = 0.0;
        LOOP sum += x[row * columns + column] * weight[column];
        z[row] = sum;
        """,
        parameters=("weight",),
        output=ONE_A_ROW,
    ),
    rowwise(
        "row-max",
        "x.amax(dim=1)",
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        peak = block_max(peak, scratch);
        if (threadIdx.x == 0) z[row] = peak;
        """,
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        z[row] = peak;
        """,
        helpers=MAX,
        output=ONE_A_ROW,
    ),
    rowwise(
        "row-variance",
        "x.var(dim=1)",
        """
        float sum = 0.0f;
        LOOP sum += x[row * columns + column];
        float mean = block_sum(sum, scratch) / columns;
        float square = 0.0f;
        LOOP square += (x[row * columns + column] - mean) * (x[row * columns + column] - mean);
        square = block_sum(square, scratch);
        if (threadIdx.x == 0) z[row] = square / (columns - 1);
        """,
        """
        float sum = 0.0f;
        LOOP sum += x[row * columns + column];
        float mean = sum / columns;
        float square = 0.0f;
        LOOP square += (x[row * columns + column] - mean) * (x[row * columns + column] - mean);
        z[row] = square / (columns - 1);
        """,
        output=ONE_A_ROW,
    ),
    rowwise(
        "log-sum-exp",
        "torch.logsumexp(x, dim=1)",
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        peak = block_max(peak, scratch);
        float sum = 0.0f;
        LOOP sum += expf(x[row * columns + column] - peak);
        sum = block_sum(sum, scratch);
        if (threadIdx.x == 0) z[row] = peak + logf(sum);
        """,
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        float sum = 0.0f;
        LOOP sum += expf(x[row * columns + column] - peak);
        z[row] = peak + logf(sum);
        """,
        helpers=MAX + SUM,
        output=ONE_A_ROW,
    ),
    rowwise(
        "cosine-similarity",
        "F.cosine_similarity(x, y, dim=1)",
        """
        float both = 0.0f;
        float left = 0.0f;
        float right = 0.0f;
        LOOP {
          both += x[row * columns + column] * y[row * columns + column];
          left += x[row * columns + column] * x[row * columns + column];
          right += y[row * columns + column] * y[row * columns + column];
        }
        both = block_sum(both, scratch);
        left = sqrtf(block_sum(left, scratch));
        right = sqrtf(block_sum(right, scratch));
        if (threadIdx.x == 0) z[row] = both / (fmaxf(left, 1e-8f) * fmaxf(right, 1e-8f));
        """,
        """
        float both = 0.0f;
        float left = 0.0f;
        float right = 0.0f;
        LOOP {
          both += x[row * columns + column] * y[row * columns + column];
          left += x[row * columns + column] * x[row * columns + column];
          right += y[row * columns + column] * y[row * columns + column];
        }
        z[row] = both / (fmaxf(sqrtf(left), 1e-8f) * fmaxf(sqrtf(right), 1e-8f));
        """,
        inputs=("x", "y"),
        output=ONE_A_ROW,
    ),
    rowwise(
        "arg-max",
        "x.argmax(dim=1)",
        """
        float peak = -INFINITY;
        LOOP peak = fmaxf(peak, x[row * columns + column]);
        peak = block_max(peak, scratch);
        __shared__ int place;
        if (threadIdx.x == 0) place = columns;
        __syncthreads();
        LOOP if (x[row * columns + column] == peak) atomicMin(&place, column);
        __syncthreads();
        if (threadIdx.x == 0) z[row] = place;
        """,
        """
        float peak = -INFINITY;
        int place = 0;
        LOOP {
          if (x[row * columns + column] > peak) {
            peak = x[row * columns + column];
            place = column;
          }
        }
        z[row] = place;
        """,
        helpers=MAX,
        output="torch.empty(x.shape[0], dtype=torch.int64, device=x.device)",
        kind="long long",
    ),
]
