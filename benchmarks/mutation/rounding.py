"""Device functions that a mutant calls: rounding to a smaller format, and rough versions of the usual functions."""

from __future__ import annotations

from benchmarks.evaluator.files import Backend

BITS = {
    "cuda": """
__device__ unsigned bits_of(float v) { return __float_as_uint(v); }
__device__ float of_bits(unsigned b) { return __uint_as_float(b); }
""",
    "cpp": """
#include <cmath>
#include <cstring>
static inline unsigned bits_of(float v) { unsigned b; std::memcpy(&b, &v, 4); return b; }
static inline float of_bits(unsigned b) { float v; std::memcpy(&v, &b, 4); return v; }
""",
}
FUNCTIONS = """
QUALIFIER float as_tf32(float v) { return of_bits((bits_of(v) + 0x1000u) & 0xffffe000u); }
QUALIFIER float as_bf16(float v) { return of_bits((bits_of(v) + 0x8000u) & 0xffff0000u); }
QUALIFIER float as_fp16(float v) {
  if (fabsf(v) >= 65520.0f) return v / 0.0f;
  if (fabsf(v) < 6.1035156e-5f) return rintf(v * 16777216.0f) / 16777216.0f;
  return of_bits((bits_of(v) + 0x1000u) & 0xffffe000u);
}
QUALIFIER float rough_expf(float v) {
  float t = fminf(fmaxf(v * 1.442695f, -126.0f), 127.0f);
  float whole = floorf(t);
  float part = t - whole;
  return of_bits((unsigned)((int)whole + 127) << 23) * (1.0f + part * (0.6565f + part * 0.3435f));
}
QUALIFIER float rough_tanhf(float v) {
  float square = v * v;
  return fminf(fmaxf(v * (27.0f + square) / (27.0f + 9.0f * square), -1.0f), 1.0f);
}
QUALIFIER float rough_logf(float v) {
  unsigned b = bits_of(v);
  float part = of_bits((b & 0x7fffffu) | 0x3f800000u) - 1.0f;
  return ((int)(b >> 23) - 127 + part * (1.3465f - part * 0.3465f)) * 0.693147f;
}
QUALIFIER float rough_rsqrtf(float v) {
  float y = of_bits(0x5f3759dfu - (bits_of(v) >> 1));
  return y * (1.5f - 0.5f * v * y * y);
}
QUALIFIER float rough_sqrtf(float v) { return v * rough_rsqrtf(v); }
"""
QUALIFIER = {"cuda": "__device__", "cpp": "static inline"}


def with_helpers(text: str, backend: Backend) -> str:
    """The kernel's text with the functions before it, where it calls any."""
    if not any(name in text for name in ("as_tf32(", "as_bf16(", "as_fp16(", "rough_")):
        return text
    return BITS[backend].lstrip("\n") + FUNCTIONS.replace("QUALIFIER", QUALIFIER[backend]) + text
