"""Functions of other libraries that a candidate's native code or its ctypes calls ask for by name.

Under own-kernels-only a matrix product by BLAS is no kernel of the candidate's own, and torch's dispatcher does not see
it. Names are those of BLAS, LAPACK, MKL, oneDNN and NVIDIA's libraries in their public headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LIBRARY = re.compile(
    r"_*(cblas_|cublas|cudnn|cufft|curand|cusparse|cusolver|cutensor|nvpl_|mkl_|MKL_|LAPACKE_|dnnl_|armpl_|openblas_)\w*"
    r"|[sdcz](gemm|gemv|symm|symv|syrk|ger|trmm|trsm|dotu?|axpy|scal|asum|nrm2|gesv|potrf|getrf)_?"
    r"|v[sd](Exp|Expm1|Ln|Log1p|Tanh|Sinh|Cosh|Sin|Cos|Erf|Erfc|Sqrt|InvSqrt|Pow|Powr|Add|Sub|Mul|Div|Sqr|Abs|CdfNorm)"
)
TORCH = ("_ZN2at", "_ZNK2at", "_ZN5torch", "_ZNK5torch", "_ZN3c10", "_ZNK3c10", "aoti_torch_")
PYTHON = re.compile(r"_?Py(_|[A-Z]\w*_)\w+")
LOADING = {"dlopen", "dlmopen", "dlsym", "dlvsym"}


def foreign_functions(names: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Those of the names that belong to a computing library, in order; `own`: what the candidate itself defines."""
    defined = set(own)
    return [name for name in dict.fromkeys(names) if name not in defined and LIBRARY.fullmatch(name)]


def foreign_symbols(names: Iterable[str]) -> list[str]:
    """The same for what a candidate's library takes from others: besides, functions of torch and of Python, and those
    by which it would look up more."""
    return [
        name
        for name in dict.fromkeys(names)
        if LIBRARY.fullmatch(name) or name.startswith(TORCH) or PYTHON.fullmatch(name) or name in LOADING
    ]
