"""Every CUDA strategy on a real GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.coding.kernels import TOLERANCE, error, traced
from tests.coding.operators import cases
from tests.coding_cuda.support import NAMES, RENDERER, STRATEGIES, imported, planned, rendered, trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize(("index", "name"), list(enumerate(NAMES)), ids=NAMES)
@pytest.mark.parametrize("columns", [517, 65535])
def test_strategy_on_the_device(index: int, name: str, columns: int) -> None:
    """With the seed's own numbers of threads, clusters and slices; each strategy in two of its storage types."""
    wanted = STRATEGIES[name].preconditions.compute_capability_min or 0
    major, minor = torch.cuda.get_device_capability()
    if major * 10 + minor < wanted:
        pytest.skip(f"needs compute capability {wanted}")
    allowed = STRATEGIES[name].preconditions.dtypes or ["float32", "float16", "bfloat16"]
    dtype: torch.dtype = getattr(torch, allowed[(index + columns % 2) % len(allowed)])
    columns = 29 if name == "cuda-thread-row" else columns
    before, operator = trial(name)
    module, inputs = cases(300, columns, dtype)[operator]
    profile, program = traced(module, inputs)
    refusal = RENDERER.refusal(program, planned(program, [*before, name]))
    if refusal:
        pytest.skip(refusal)
    file = imported(rendered(profile, program, [*before, name]))
    kernel = file.ModelNew()
    kernel.load_state_dict(module.state_dict())
    kernel.cuda()
    module.cuda()
    moved = [item.cuda() for item in inputs]
    for _ in range(2):
        assert error(kernel, module, moved) <= max(TOLERANCE[dtype], 5e-6)
    assert file.LAUNCHES


def test_another_stream_and_another_thread() -> None:
    """Work is ordered on the stream that is current, and a thread without a context of its own can launch."""
    module, inputs = cases(300, 1000)["softmax"]
    file = imported(rendered(*traced(module, inputs), ["cuda-vector-4"]))
    kernel = file.ModelNew()
    x = inputs[0].cuda()
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        y = kernel(x * 2.0)
        torch.cuda.current_stream().synchronize()
    assert torch.allclose(y, torch.softmax(x * 2.0, -1), atol=1e-6)
    with ThreadPoolExecutor(1) as pool:
        z = pool.submit(lambda: kernel(x)).result()
    torch.cuda.synchronize()
    assert torch.allclose(z, torch.softmax(x, -1), atol=1e-6)


def test_more_elements_than_half_of_what_an_int_counts() -> None:
    """The step after the last tile must not overflow: plain loops over 1.2 billion elements, one for each thread."""
    module, inputs = torch.nn.ReLU(), [torch.empty(1200, 1_000_000, dtype=torch.float16, device="meta")]
    file = imported(rendered(*traced(module, inputs), []))
    x = torch.randn(1200, 1_000_000, dtype=torch.float16, device="cuda")
    with torch.no_grad():
        y = file.ModelNew()(x)
    assert all(torch.equal(y[row], torch.relu(x[row])) for row in range(0, 1200, 100))
    assert torch.equal(y[-1], torch.relu(x[-1]))
