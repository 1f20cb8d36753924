"""Prompts: built in, a user's, broken ones; and what the model reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends.base import Backend, DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import CudaBackend
from htam_agent.coding.assembly import assemble
from htam_agent.coding.examples import example_request, render_examples
from htam_agent.coding.parsing import fenced_blocks, parse_answer
from htam_agent.coding.prompting import NAMES, Prompts, fenced
from htam_agent.coding.values import generate_values, tensor_words
from htam_agent.errors import SettingsError
from htam_agent.evaluation.policy import inspect_source
from htam_agent.operator import TensorInfo


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return render_examples(Prompts())


def test_the_first_prompt_holds_what_a_coder_needs(rendered: dict[str, str]) -> None:
    text = rendered["generate-first-cpp"]
    for said in (
        "class Model(nn.Module)", "float32 [1024, 1024]", "aten.relu", "8.389 MB", "a processor", "10 GB/s", "floor",
        "own-kernels-only", "Move bytes in wide pieces.", "the kernel waits for memory", "wide-loads",
        "the tail needs care", "vector_width = 4", "{{ plan.vector_width }} elements at once;",
    ):  # fmt: skip
        assert said in text
    assert "best kernel so far" not in text


def test_later_prompts_hold_the_best_kernel_and_the_history(rendered: dict[str, str]) -> None:
    text = rendered["generate-later-cpp"]
    for said in (
        "this kernel 1",
        "the baseline to beat 2",
        "50 %",
        "Bound by memory.",
        "CPP_SRC = ''",
        "correct, 1.2x",
    ):
        assert said in text


def test_each_backend_reads_its_own_contract(rendered: dict[str, str]) -> None:
    assert "load_kernels(CPP_SRC)" in rendered["system-cpp"]
    assert "CUDA" not in rendered["system-cpp"]
    assert "CudaKernels(CUDA_SRC)" in rendered["system-cuda"]
    assert "sm_90" in rendered["system-cuda"]
    assert "g++" not in rendered["system-cuda"]


def test_the_repair_prompt_carries_the_evidence(rendered: dict[str, str]) -> None:
    assert "at [0, 3]: 1 instead of 2" in rendered["repair-cpp"]
    assert "results differ" in rendered["repair-cpp"]


def test_no_prompt_shows_a_hole(rendered: dict[str, str]) -> None:
    for text in rendered.values():
        assert "None" not in text.replace("restype = None", "")
        assert "Undefined" not in text
        assert "\n\n\n\n" not in text


def test_a_users_prompt_wins_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "repair.md").write_text("Mend it: {{ reason }}")
    prompts = Prompts(tmp_path)
    assert {name: file.origin for name, file in prompts.files.items()} == {
        "system": "built-in", "generate": "built-in", "repair": "user",
    }  # fmt: skip
    assert render_examples(prompts)["repair-cpp"] == "Mend it: outputs differ\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ secret_variable }}", "secret_variable"),
        ("{% for x in %}", "does not parse"),
        ("{{ reason | no_such_filter }}", "no_such_filter"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_when_it_is_loaded(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "repair.md").write_text(text)
    with pytest.raises(SettingsError, match=said) as caught:
        Prompts(tmp_path)
    assert "repair.md" in caught.value.message


@pytest.mark.parametrize(
    "text", ["{{ reason.__class__.__mro__ }}", "{{ 1 / 0 }}", "{{ tried[99] }}", "{{ reason.nothing }}"]
)
def test_a_prompt_that_fails_when_it_is_rendered_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "repair.md").write_text(text)
    with pytest.raises(SettingsError, match=r"repair\.md"):
        render_examples(Prompts(tmp_path))


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HTAM_PROMPTS"):
        Prompts(tmp_path / "nowhere")


def test_values_are_never_templates() -> None:
    request = example_request("cpp").model_copy(update={"task_source": "{{ 7 * 191 }} {% raw %}"})
    text = Prompts().render("generate", generate_values(request))
    assert "{{ 7 * 191 }} {% raw %}" in text
    assert "1337" not in text


def test_without_source_the_traced_calls_speak() -> None:
    request = example_request("cpp").model_copy(update={"task_source": ""})
    text = Prompts().render("generate", generate_values(request))
    assert "relu = aten.relu.default(x) -> float32 [1024, 1024]" in text


def test_strides_are_named_where_they_matter() -> None:
    plain = TensorInfo(name="x", shape=(2, 3), dtype="float32", stride=(3, 1))
    assert tensor_words(plain) == "x: float32 [2, 3]"
    turned = plain.model_copy(update={"stride": (1, 2)})
    assert "not contiguous" in tensor_words(turned)


@given(st.text(), st.sampled_from(["", "python"]))
def test_a_fence_cannot_end_early(text: str, language: str) -> None:
    blocks = fenced_blocks(fenced(text, language))
    assert len(blocks) == 1
    assert blocks[0].closed
    assert blocks[0].text == "\n".join(text.rstrip().splitlines())


def test_the_names_are_those_of_the_files() -> None:
    folder = Path(__file__).resolve().parents[2] / "prompts"
    assert {path.stem for path in folder.glob("*.md")} == set(NAMES)


@pytest.mark.parametrize("backend", [CppBackend(), CudaBackend("sm_90")], ids=["cpp", "cuda"])
def test_the_example_in_the_contract_keeps_the_contract(backend: Backend, tmp_path: Path) -> None:
    """What the model is shown passes the policy and really builds."""
    if not backend.can_build().ok:
        pytest.skip(backend.can_build().reason)
    shown = render_examples(Prompts())[f"system-{backend.name}"]
    parsed = parse_answer(shown, backend.name)
    assert parsed.problem == ""
    found = inspect_source(assemble(parsed.source, backend.name), backend.name, "own-kernels-only")
    assert found.reason == ""
    assert not found.deferred
    built = backend.build(found.source, tmp_path, DefaultLimits())
    assert built.ok, built.log
