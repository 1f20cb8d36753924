"""Every CUDA strategy on a real GPU."""

from __future__ import annotations

import pytest
import torch

from tests.coding.kernels import TOLERANCE, error, traced
from tests.coding.operators import cases
from tests.coding_cuda.support import BEFORE, NAMES, STRATEGIES, imported, rendered

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [517, 4096, 65535])
def test_strategy_on_the_device(name: str, columns: int) -> None:
    wanted = STRATEGIES[name].preconditions.compute_capability_min or 0
    major, minor = torch.cuda.get_device_capability()
    if major * 10 + minor < wanted:
        pytest.skip(f"needs compute capability {wanted}")
    columns = 29 if name == "cuda-thread-row" else columns
    before, operator = BEFORE[name]
    for dtype in STRATEGIES[name].preconditions.dtypes or ["float32", "float16", "bfloat16"]:
        kind: torch.dtype = getattr(torch, dtype)
        module, inputs = cases(300, columns, kind)[operator]
        file = imported(rendered(*traced(module, inputs), [*before, name]))
        kernel = file.ModelNew()
        kernel.load_state_dict(module.state_dict())
        kernel.cuda()
        module.cuda()
        moved = [item.cuda() for item in inputs]
        assert error(kernel, module, moved) <= max(TOLERANCE[kind], 5e-6)
        again = [item.clone() for item in moved]
        assert error(kernel, module, again) <= max(TOLERANCE[kind], 5e-6)
        assert file.LAUNCHES
