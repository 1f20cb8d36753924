"""Correct kernels that move data or mix neighbours: transpose, products, windows, scans, gathers."""

from __future__ import annotations

from benchmarks.mutation.small_operator import OTHER_WIDE, WIDE, Operator

TRANSPOSE = Operator(
    name="transpose-scale",
    sizes={"rows": 75, "columns": 131},
    more_sizes=({"rows": 33, "columns": 257}, {"rows": 130, "columns": 16}),
    inputs={"x": "rows, columns"},
    parameters={"weight": "columns"},
    expression="return (x * self.weight).t().contiguous()",
    forward="""
        rows, columns = x.shape
        z = torch.empty(columns, rows, device=x.device)
        across, down = -(-columns // 16), -(-rows // 16)
        launch("kernel", across * down, 256, x, self.weight, z, rows, columns)
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(const float* x, const float* weight, float* z, int rows, int columns) {
  __shared__ float tile[16][17];
  int across = (columns + 15) / 16;
  int left = blockIdx.x % across * 16;
  int top = blockIdx.x / across * 16;
  int fast = threadIdx.x % 16;
  int slow = threadIdx.x / 16;
  if (top + slow < rows && left + fast < columns)
    tile[slow][fast] = x[(top + slow) * columns + left + fast] * weight[left + fast];
  __syncthreads();
  if (left + slow < columns && top + fast < rows) z[(left + slow) * rows + top + fast] = tile[fast][slow];
}
""",
    cpp="""
extern "C" void kernel(const float* x, const float* weight, float* z, int rows, int columns) {
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column)
      z[column * rows + row] = x[row * columns + column] * weight[column];
}
""",
)

MATVEC = Operator(
    name="matvec",
    sizes=WIDE,
    more_sizes=OTHER_WIDE,
    inputs={"x": "rows, columns", "y": "columns"},
    expression="return (x * y).sum(dim=1) + 1.0",
    forward="""
        z = torch.empty(x.shape[0], device=x.device)
        launch("kernel", -(-x.shape[0] // 8), 256, x, y, z, x.shape[0], x.shape[1])
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(const float* x, const float* y, float* z, int rows, int columns) {
  int lane = threadIdx.x % 32;
  int row = blockIdx.x * 8 + threadIdx.x / 32;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int column = lane; column < columns; column += 32) sum += x[row * columns + column] * y[column];
  for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
  if (lane == 0) z[row] = sum + 1.0f;
}
""",
    cpp="""
extern "C" void kernel(const float* x, const float* y, float* z, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    double sum = 0.0;
    for (int column = 0; column < columns; ++column) sum += x[row * columns + column] * y[column];
    z[row] = sum + 1.0f;
  }
}
""",
)

MATMUL = Operator(
    name="matmul-bias",
    sizes={"rows": 53, "inner": 94, "columns": 71},
    more_sizes=({"rows": 17, "inner": 33, "columns": 130}, {"rows": 64, "inner": 256, "columns": 16}),
    inputs={"x": "rows, inner", "y": "inner, columns"},
    parameters={"bias": "columns"},
    zeros=("bias",),
    expression="return torch.relu(x @ y + self.bias)",
    forward="""
        (rows, inner), columns = x.shape, y.shape[1]
        z = torch.empty(rows, columns, device=x.device)
        across, down = -(-columns // 16), -(-rows // 16)
        launch("kernel", across * down, 256, x, y, self.bias, z, rows, inner, columns)
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(
    const float* x, const float* y, const float* bias, float* z, int rows, int inner, int columns) {
  __shared__ float left[16][16];
  __shared__ float right[16][16];
  int across = (columns + 15) / 16;
  int fast = threadIdx.x % 16;
  int slow = threadIdx.x / 16;
  int row = blockIdx.x / across * 16 + slow;
  int column = blockIdx.x % across * 16 + fast;
  float sum = 0.0f;
  for (int start = 0; start < inner; start += 16) {
    left[slow][fast] = row < rows && start + fast < inner ? x[row * inner + start + fast] : 0.0f;
    right[slow][fast] = column < columns && start + slow < inner ? y[(start + slow) * columns + column] : 0.0f;
    __syncthreads();
    for (int step = 0; step < 16; ++step) sum += left[slow][step] * right[step][fast];
    __syncthreads();
  }
  if (row < rows && column < columns) {
    float value = sum + bias[column];
    z[row * columns + column] = value > 0.0f ? value : 0.0f;
  }
}
""",
    cpp="""
extern "C" void kernel(
    const float* x, const float* y, const float* bias, float* z, int rows, int inner, int columns) {
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      float sum = 0.0f;
      for (int step = 0; step < inner; ++step) sum += x[row * inner + step] * y[step * columns + column];
      float value = sum + bias[column];
      z[row * columns + column] = value > 0.0f ? value : 0.0f;
    }
}
""",
)

CONV = Operator(
    name="depthwise-conv-1d",
    sizes={"batch": 4, "channels": 6, "length": 213},
    more_sizes=({"batch": 2, "channels": 3, "length": 1030}, {"batch": 7, "channels": 5, "length": 17}),
    inputs={"x": "batch, channels, length", "y": "channels, 3"},
    parameters={"bias": "channels"},
    zeros=("bias",),
    expression="return F.conv1d(x, y.unsqueeze(1), self.bias, padding=1, groups=x.shape[1])",
    forward="""
        batch, channels, length = x.shape
        z = torch.empty_like(x)
        launch("kernel", -(-x.numel() // 256), 256, x, y, self.bias, z, x.numel(), channels, length)
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(
    const float* x, const float* y, const float* bias, float* z, int total, int channels, int length) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= total) return;
  int place = index % length;
  int channel = index / length % channels;
  float sum = bias[channel];
  for (int tap = 0; tap < 3; ++tap) {
    int from = place + tap - 1;
    if (from >= 0 && from < length) sum += x[index + tap - 1] * y[channel * 3 + tap];
  }
  z[index] = sum;
}
""",
    cpp="""
extern "C" void kernel(
    const float* x, const float* y, const float* bias, float* z, int total, int channels, int length) {
  for (int index = 0; index < total; ++index) {
    int place = index % length;
    int channel = index / length % channels;
    float sum = bias[channel];
    for (int tap = 0; tap < 3; ++tap) {
      int from = place + tap - 1;
      if (from >= 0 && from < length) sum += x[index + tap - 1] * y[channel * 3 + tap];
    }
    z[index] = sum;
  }
}
""",
)

IMAGES = {"batch": 3, "channels": 4, "height": 26, "width": 38}
OTHER_IMAGES: tuple[dict[str, int], ...] = (
    {"batch": 1, "channels": 3, "height": 64, "width": 10},
    {"batch": 5, "channels": 2, "height": 8, "width": 130},
)


def pool(name: str, expression: str, start: str, step: str, finish: str) -> Operator:
    """A window of 2 x 2 with stride 2."""
    body = f"""
  int wide = width / 2;
  int high = height / 2;
  int across = index % wide;
  int down = index / wide % high;
  int plane = index / (wide * high);
  float value = {start};
  for (int dy = 0; dy < 2; ++dy)
    for (int dx = 0; dx < 2; ++dx) {{
      float item = x[(plane * height + 2 * down + dy) * width + 2 * across + dx];
      value = {step};
    }}
  z[index] = {finish};"""
    return Operator(
        name=name,
        sizes=IMAGES,
        more_sizes=OTHER_IMAGES,
        inputs={"x": "batch, channels, height, width"},
        expression=f"return {expression}",
        forward="""
            batch, channels, height, width = x.shape
            z = torch.empty(batch, channels, height // 2, width // 2, device=x.device)
            launch("kernel", -(-z.numel() // 256), 256, x, z, z.numel(), height, width)
            return z
        """,
        cuda=f"""
extern "C" __global__ void kernel(const float* x, float* z, int total, int height, int width) {{
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= total) return;{body}
}}
""",
        cpp=f"""
#include <cmath>
extern "C" void kernel(const float* x, float* z, int total, int height, int width) {{
  for (int index = 0; index < total; ++index) {{{body}
  }}
}}
""",
    )


CUMSUM = Operator(
    name="cumulative-sum",
    sizes=WIDE,
    more_sizes=OTHER_WIDE,
    inputs={"x": "rows, columns"},
    expression="return torch.cumsum(x, dim=1)",
    forward="""
        z = torch.empty_like(x)
        launch("kernel", x.shape[0], 256, x, z, x.shape[0], x.shape[1])
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(const float* x, float* z, int rows, int columns) {
  __shared__ float scratch[256];
  int row = blockIdx.x;
  int lane = threadIdx.x;
  float carry = 0.0f;
  for (int start = 0; start < columns; start += 256) {
    int column = start + lane;
    scratch[lane] = column < columns ? x[row * columns + column] : 0.0f;
    __syncthreads();
    for (int reach = 1; reach < 256; reach *= 2) {
      float before = lane >= reach ? scratch[lane - reach] : 0.0f;
      __syncthreads();
      scratch[lane] += before;
      __syncthreads();
    }
    if (column < columns) z[row * columns + column] = scratch[lane] + carry;
    carry += scratch[255];
    __syncthreads();
  }
}
""",
    cpp="""
extern "C" void kernel(const float* x, float* z, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    double sum = 0.0;
    for (int column = 0; column < columns; ++column) {
      sum += x[row * columns + column];
      z[row * columns + column] = sum;
    }
  }
}
""",
)

MSE = Operator(
    name="mean-squared-error",
    sizes=WIDE,
    more_sizes=OTHER_WIDE,
    inputs={"x": "rows, columns", "y": "rows, columns"},
    expression="return F.mse_loss(x, y)",
    forward="""
        z = torch.zeros((), device=x.device)
        launch("kernel", 60, 256, x, y, z, x.numel())
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(const float* x, const float* y, float* z, int total) {
  float sum = 0.0f;
  for (int index = blockIdx.x * blockDim.x + threadIdx.x; index < total; index += gridDim.x * blockDim.x) {
    float gap = x[index] - y[index];
    sum += gap * gap;
  }
  for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
  if (threadIdx.x % 32 == 0) atomicAdd(z, sum / total);
}
""",
    cpp="""
extern "C" void kernel(const float* x, const float* y, float* z, int total) {
  double sum = 0.0;
  for (int index = 0; index < total; ++index) {
    float gap = x[index] - y[index];
    sum += gap * gap;
  }
  *z = sum / total;
}
""",
)

GATHER = Operator(
    name="embedding-scaled",
    sizes={"rows": 40, "columns": 67, "count": 93},
    more_sizes=({"rows": 300, "columns": 5, "count": 410}, {"rows": 7, "columns": 260, "count": 31}),
    inputs={"x": "rows, columns", "places": "count"},
    integers={"places": "rows"},
    parameters={"weight": "columns"},
    expression="return x[places] * self.weight",
    forward="""
        count, columns = places.shape[0], x.shape[1]
        z = torch.empty(count, columns, device=x.device)
        launch("kernel", -(-z.numel() // 256), 256, x, places, self.weight, z, z.numel(), columns)
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(
    const float* x, const long long* places, const float* weight, float* z, int total, int columns) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= total) return;
  int column = index % columns;
  int place = places[index / columns];
  z[index] = x[place * columns + column] * weight[column];
}
""",
    cpp="""
extern "C" void kernel(
    const float* x, const long long* places, const float* weight, float* z, int total, int columns) {
  for (int index = 0; index < total; ++index) {
    int column = index % columns;
    int place = places[index / columns];
    z[index] = x[place * columns + column] * weight[column];
  }
}
""",
)

TRIANGLE = Operator(
    name="causal-scale",
    sizes={"heads": 3, "size": 61},
    more_sizes=({"heads": 1, "size": 130}, {"heads": 9, "size": 17}),
    inputs={"x": "heads, size, size"},
    expression="return torch.tril(x) * 0.125 + 1.0",
    forward="""
        z = torch.empty_like(x)
        launch("kernel", -(-x.numel() // 256), 256, x, z, x.numel(), x.shape[1])
        return z
    """,
    cuda="""
extern "C" __global__ void kernel(const float* x, float* z, int total, int size) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= total) return;
  int column = index % size;
  int row = index / size % size;
  float value = column <= row ? x[index] : 0.0f;
  z[index] = value * 0.125f + 1.0f;
}
""",
    cpp="""
extern "C" void kernel(const float* x, float* z, int total, int size) {
  for (int index = 0; index < total; ++index) {
    int column = index % size;
    int row = index / size % size;
    float value = column <= row ? x[index] : 0.0f;
    z[index] = value * 0.125f + 1.0f;
  }
}
""",
)

LAYOUTS = [
    TRANSPOSE,
    MATVEC,
    MATMUL,
    CONV,
    pool("max-pool", "F.max_pool2d(x, 2)", "-INFINITY", "fmaxf(value, item)", "value"),
    pool("average-pool", "F.avg_pool2d(x, 2)", "0.0f", "value + item", "value / 4.0f"),
    CUMSUM,
    MSE,
    GATHER,
    TRIANGLE,
]
