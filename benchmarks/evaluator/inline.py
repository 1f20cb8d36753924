"""A kernel in the form that most published ones have: torch's load_inline, built when the file is imported."""

from __future__ import annotations

INLINE_GELU = '''"""KernelBench 1/88 by load_inline: one kernel for the whole expression."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>

__global__ void gelu(const float* x, float* z, long total) {
  long index = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (index >= total) return;
  float v = x[index];
  z[index] = 0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
}

torch::Tensor run(torch::Tensor x) {
  auto z = torch::empty_like(x);
  long total = x.numel();
  gelu<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), z.data_ptr<float>(), total);
  return z;
}
"""
built = load_inline("inline_gelu", "torch::Tensor run(torch::Tensor x);", CUDA, functions=["run"])


class ModelNew(nn.Module):
    def forward(self, x):
        return built.run(x)
'''
