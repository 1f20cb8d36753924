"""What a candidate's text and its operators say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.policy import LIBRARY, MOVING, default_policy, forbidden_operators, inspect_source
from htam_agent.operator import OperatorClass, OperatorProfile
from htam_agent.words import Policy


def profile(operator_class: OperatorClass, *operators: str, untraceable: str | None = None) -> OperatorProfile:
    return OperatorProfile(
        name="x", operator_class=operator_class, operators=list(operators), inputs=[], parameters=[], outputs=[],
        unavoidable_bytes=0, operations=0, untraceable=untraceable,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "policy"),
    [
        (profile("pointwise", "aten.relu"), "own-kernels-only"),
        (profile("softmax", "aten._softmax"), "own-kernels-only"),
        (profile("matmul", "aten.mm"), "library-allowed"),
        (profile("composite", "aten.convolution", "aten.relu"), "library-allowed"),
        (profile("composite", "aten.addmm", "aten.gelu"), "library-allowed"),
        (profile("other", untraceable="no"), "library-allowed"),
    ],
)
def test_the_default_policy_follows_the_operators(operator: OperatorProfile, policy: Policy) -> None:
    assert default_policy(operator) == policy


def test_operators_that_ran_are_judged() -> None:
    ran = ["aten.empty_like", "aten.view", "aten.mm", "aten.relu", "mine.kernel"]
    assert forbidden_operators(ran, "own-kernels-only", ["mine"]) == ["aten.mm", "aten.relu"]
    assert forbidden_operators(ran, "library-allowed", ["mine"]) == ["aten.relu"]
    assert forbidden_operators(["mine.kernel"], "library-allowed", []) == ["mine.kernel"]
    assert not MOVING & LIBRARY


@pytest.mark.parametrize(
    "operator", ["prims.add", "mkldnn._linear_pointwise", "quantized.add", "quantized_decomposed.x"]
)
@pytest.mark.parametrize("claimed", [True, False])
def test_operators_of_torch_are_nobodys_own(operator: str, claimed: bool) -> None:
    own = [operator.partition(".")[0]] if claimed else []
    assert forbidden_operators([operator], "library-allowed", own) == [operator]


@pytest.mark.parametrize(
    "line",
    [
        "import numpy; y = numpy.tanh(x)",
        "import numpy as np; y = np.add(x, x)",
        "from scipy import special; y = special.erf(x)",
        "import numpy.linalg; y = numpy.linalg.inv(x)",
        "y = x.numpy() * 2",
        "y = helper(x)",
        "y = function(x)",
    ],
)
def test_other_libraries_do_not_compute_under_own_kernels_only(line: str) -> None:
    top = "import numpy as np\nfunction = np.tanh\ndef helper(x): return np.tanh(x)\nCUDA_SRC = 'text'"
    text = file(line + "; return y", top)
    assert "own-kernels-only" in inspect_source(text, "cuda", "own-kernels-only").reason
    assert inspect_source(text, "cuda", "library-allowed").reason == ""


HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def file(forward: str, source: str = "CUDA_SRC = 'text'", bases: str = "nn.Module") -> str:
    return f"{HEAD}{source}\nclass ModelNew({bases}):\n    def forward(self, x):\n        {forward}\n"


@pytest.mark.parametrize(
    ("forward", "own", "library"),
    [
        ("return torch.empty_like(x)", True, True),
        ("return launch(x.contiguous().view(-1), torch.zeros(3, device=x.device))", True, True),
        ("return torch.ops.mine.kernel(x)", True, True),
        ("torch.cuda.current_stream(); return x", True, True),
        ("return torch.relu(x)", False, False),
        ("return F.softmax(x, -1)", False, False),
        ("return torch.nn.functional.gelu(x)", False, False),
        ("return F.linear(x, self.w)", False, True),
        ("return torch.matmul(x, self.w)", False, True),
        ("return math.exp(1) * len(x.shape)", True, True),
    ],
)
def test_calls_of_torch_are_judged_by_name(forward: str, own: bool, library: bool) -> None:
    assert (inspect_source(file(forward), "cuda", "own-kernels-only").reason == "") is own
    assert (inspect_source(file(forward), "cuda", "library-allowed").reason == "") is library


def test_a_try_around_a_build_is_no_cheat() -> None:
    text = file("return launch(x)", "CUDA_SRC = 'text'\ntry:\n    build()\nexcept OSError:\n    build()")
    assert inspect_source(text, "cuda", "own-kernels-only").reason == ""


def test_a_reference_model_beside_the_candidate_is_no_cheat() -> None:
    text = (
        HEAD
        + "class Model(nn.Module):\n    def reference(self, x):\n        return torch.relu(x)\n"
        + file("return g(x)")
    )
    assert inspect_source(text, "cuda", "own-kernels-only").reason == ""


@pytest.mark.parametrize(
    "source",
    [
        "CUDA_SRC = make()",
        "module = load_inline(name='m', cpp_sources='', cuda_sources='')",
        "module = torch.utils.cpp_extension.load_inline(name='m', cpp_sources='')",
        "@triton.jit\ndef kernel(): pass",
        "@triton.autotune(configs=[])\n@triton.jit\ndef kernel(): pass",
    ],
)
def test_a_file_that_builds_itself_is_built_later(source: str) -> None:
    inspection = inspect_source(file("return x", source), "cuda", "own-kernels-only")
    assert inspection.reason == ""
    assert inspection.deferred
    assert inspection.source == ""


def test_the_source_is_read_from_the_text() -> None:
    inspection = inspect_source(file("return x", "CUDA_SRC: str = r'''a\\n'''"), "cuda", "own-kernels-only")
    assert inspection.source == "a\\n"
    assert inspect_source(file("return x", "CPP_SRC = 'c'"), "cpp", "own-kernels-only").source == "c"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (file("return x", ""), "no kernel"),
        (file("return x", "CPP_SRC = 'c'"), "CUDA_SRC"),
        (HEAD + "CUDA_SRC = 'x'\nclass Model: pass\nclass ModelNew(Model): pass", "forward"),
        (HEAD + "CUDA_SRC = 'x'", "ModelNew"),
        ("def", "parse"),
        ("x = '\0'", "parse"),
        ("", "ModelNew"),
    ],
)
def test_what_cannot_be_used_is_said(text: str, word: str) -> None:
    assert word in inspect_source(text, "cuda", "own-kernels-only").reason


def test_a_base_class_of_the_file_may_hold_forward() -> None:
    base = "class Base(nn.Module):\n    def forward(self, x): return launch(x)\n"
    text = HEAD + "CUDA_SRC = 'x'\n" + base + "class ModelNew(Base):\n    pass\n"
    assert inspect_source(text, "cuda", "own-kernels-only").reason == ""


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert inspect_source(text, "cpp", "own-kernels-only").reason


RETAINED = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(F.softmax(x, -1))\n"


@pytest.mark.parametrize(
    "more",
    [
        "import numpy as np\n",
        "import numpy as np\ndef get_init_inputs():\n    return [int(np.prod([2, 3]))]\n",
        RETAINED,
        RETAINED.replace("Model", "Old"),
        "def check(x):\n    return torch.relu(x).numpy()\n",
        "if __name__ == '__main__':\n    import numpy as np\n    print(np.abs(ModelNew()(torch.ones(3)).numpy()))\n",
    ],
)
def test_what_model_new_does_not_come_to_refuses_no_file(more: str) -> None:
    for text in (file("return launch(x)", "CUDA_SRC = 'x'\n" + more), file("return launch(x)") + more):
        assert inspect_source(text, "cuda", "own-kernels-only").reason == ""
    own = file("return launch(x)", RETAINED + "CUDA_SRC = 'x'", "Model")
    assert inspect_source(own, "cuda", "own-kernels-only").reason == ""


@pytest.mark.parametrize(
    "text",
    [
        file("return super().forward(x)", RETAINED + "CUDA_SRC = 'x'", "Model"),
        file("return Model.forward(self, x)", RETAINED + "CUDA_SRC = 'x'", "Model"),
        file("return Model()(x)", RETAINED + "CUDA_SRC = 'x'"),
        file("return inner(x)", RETAINED + "CUDA_SRC = 'x'\ninner = Model()"),
        HEAD + "CUDA_SRC = 'x'\n" + RETAINED.replace("Model", "Base") + "class ModelNew(Base):\n    pass\n",
        RETAINED.join((HEAD, "CUDA_SRC = 'x'\nModelNew = Model\n")),
    ],
)
def test_what_model_new_does_come_to_refuses_it(text: str) -> None:
    assert "forward calls" in inspect_source(text, "cuda", "own-kernels-only").reason
